"""`kvcache bench`: benches that need little memory print one JSON object with figures, and refuse what they would ignore.

    bench.py TOOL
"""

import json
import subprocess
import sys
import unittest

TOOL = sys.argv.pop(1)
SHORT = ("--seconds", "0.01", "--reps", "2", "--json")
# Arguments of each, and the fields that hold what was measured.
BENCHES = {
    "bookkeeping": (("--sequences", "3", "--tokens", "40"),
                    ("add_remove_ns", "fork_remove_ns", "append_pop_ns", "begin_abort_ns", "can_append_ns")),
    "clear": (("--layers", "2", "--tokens", "24", "--threads", "1"), ("of_append", "bytes")),
    "schedule": (("--context", "700"), ("sequences_1", "sequences_256")),
    "step": (("--sequences", "3", "--context", "40", "--many", "0"), ("host_ns", "ns_per_seq")),
    "prefix": (("--tokens", "640",), ()),
}


def run(*arguments):
    return subprocess.run([TOOL, "bench", *arguments], capture_output=True, text=True, timeout=300)


class Bench(unittest.TestCase):
    def test_each_prints_one_object(self):
        for name, (arguments, fields) in BENCHES.items():
            with self.subTest(name):
                done = run(name, *arguments, *SHORT)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                report = json.loads(done.stdout)
                self.assertEqual(report["bench"], name)
                for field in fields:
                    value = report[field]["microseconds"] if isinstance(report[field], dict) else report[field]
                    self.assertGreater(value, 0, field)

    def test_a_transfer_is_compared_with_a_plain_socket(self):
        done = run("transfer", "--tokens", "640", "--rounds", "2", *SHORT)
        if "libkvcache_transport_ucx.so" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        for way in ("ucx", "engine", "loopback"):
            for field in ("gbps", "raw_socket_gbps", "share"):
                self.assertGreater(report[way][field], 0, (way, field))
            self.assertGreater(report["cpu_ms_per_gb"][way], 0)
        self.assertEqual((report["pages"], report["page_bytes"]), (40, 16384))

    def test_a_prefill_hides_what_is_sent_as_computed(self):
        done = run("overlap", "--tokens", "256", "--layers", "3", "--rounds", "2", *SHORT)
        if "libkvcache_transport_ucx.so" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertEqual(report["bytes"], 256 * 3 * 1024)
        self.assertLessEqual(report["hidden_min"], report["hidden"])
        for field in ("transfer_ms", "prefill_ms", "both_ms"):
            self.assertGreater(report[field], 0, field)

    def test_the_work_list_of_a_batch_has_its_items(self):
        report = json.loads(run("schedule", *SHORT).stdout)
        self.assertGreaterEqual(report["sequences_64"]["items"], 64)

    def test_what_would_be_ignored_is_refused(self):
        done = run("schedule", "--sequences", "3")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--sequences", done.stderr)

    def test_an_option_before_the_name_of_its_bench_is_told_its_place(self):
        done = run("--threads", "1", "decode", *SHORT)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--threads: belongs behind the name of the bench", done.stderr)


if __name__ == "__main__":
    unittest.main()
