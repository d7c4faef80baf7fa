"""`kvcache bench --device`: every shape in a tiny size on an emulated device, and how it says no.

    bench_device.py TOOL DIRECTORY    DIRECTORY: of an emulated libkvcache_cuda.so; without one only the refusals are tested
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

EMULATED = pathlib.Path(sys.argv.pop(2))
TOOL = pathlib.Path(sys.argv.pop(1))
LIBRARY = "libkvcache_cuda.so"


def run(tool, *arguments):
    return subprocess.run([tool, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=600)


class Alone(unittest.TestCase):
    """The command without a back end: a library that lies beside it would be found."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.tool = pathlib.Path(shutil.copy2(TOOL, self.directory))

    def refused(self, part, *arguments):
        done = run(self.tool, *arguments)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_without_a_back_end_the_refusal_names_the_library(self):
        library = self.directory.resolve() / LIBRARY
        self.refused(f"kvcache bench device: KVC_E_UNSUPPORTED: no CUDA back end: {library}", "--device", "cuda")
        self.refused(f"kvcache bench decode: KVC_E_UNSUPPORTED: no CUDA back end: {library}", "decode", "--device", "cuda:0", "--json")

    def test_a_library_in_the_search_path_of_the_linker_is_not_taken(self):
        elsewhere = self.directory / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / LIBRARY).write_bytes(b"no library")
        os.environ["LD_LIBRARY_PATH"] = str(elsewhere)
        self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH")
        self.refused(str(self.directory.resolve() / LIBRARY), "--device", "cuda")

    def test_what_is_no_back_end_is_named(self):
        (self.directory / LIBRARY).write_bytes(b"no library")
        self.refused(LIBRARY, "--device", "cuda")

    def test_a_device_has_a_name_that_is_known(self):
        for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 "):
            self.refused("expected cpu, cuda or cuda:N", "--device", name)

    def test_options_that_would_be_ignored_are_refused(self):
        self.refused("--q-heads", "decode", "--device", "cuda", "--q-heads", 8)
        self.refused("--threads", "--device", "cuda", "--threads", 2)
        for option in (["--tiny"], ["--shapes", "D1"], ["--matmul-tflops", 100]):
            self.refused(f"{option[0]}: only with --device", "decode", *option)
        self.refused("--threads: not of this bench", "step", "--threads", 2)

    def test_benches_and_shapes_that_a_gpu_has_not_are_refused(self):
        self.refused("it has no shapes there", "step", "--device", "cuda")
        self.refused("--shapes P1: expected some of M1, M2", "mla", "--device", "cuda", "--shapes", "P1")


@unittest.skipUnless((EMULATED / LIBRARY).exists(), f"no {LIBRARY} in {EMULATED}")
class Emulated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.tool = shutil.copy2(TOOL, directory.name)
        shutil.copy2(EMULATED / LIBRARY, directory.name)  # modules lie beside the command
        # What the module depends on is the linker's to find.
        runtime = EMULATED.parent / "tests" / "cudasim"
        environment = unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": str(runtime)})
        environment.start()
        cls.addClassCleanup(environment.stop)

    def measured(self, *arguments):
        done = run(self.tool, *arguments, "--device", "cuda:0", "--tiny", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        report = json.loads(done.stdout)
        self.assertEqual((report["device"], report["device_name"]), ("cuda:0", "Emulated device"))
        self.assertIs(report["emulated"], True)
        self.assertIs(report["tiny"], True)
        self.assertIn("which this device is not", report["matmul_source"])
        self.assertGreater(report["copy_gbps"], 0)
        return {shape["id"]: shape for shape in report["shapes"]}

    def test_every_shape_is_measured_or_refused_by_name(self):
        shapes = self.measured()
        self.assertEqual(len(shapes), 24)
        for name, shape in shapes.items():
            with self.subTest(name):
                self.assertTrue(shape["what"].startswith("(tiny) "))
                self.assertNotIn("failed", shape)
                if "refused" in shape:
                    self.assertEqual(name, "D7", shape["refused"])  # storage of 8 bits
                    continue
                self.assertGreater(shape["us"], 0)
                self.assertGreater(shape["bytes"], 0)
                self.assertAlmostEqual(shape["share"] * shape["us"] / shape["floor_us"], 1, delta=0.01)
                self.assertEqual("flops" in shape, shape["bench"] not in ("append", "copy", "linear"))
                if shape["bench"] != "copy":
                    self.assertGreater(shape["empty_step_us"], 0)
                    self.assertGreater(shape["step_bytes"], 0)
                    self.assertEqual(shape["step_copies"], 1)
        # 3 sequences of 41 keys, 2 heads of 128 elements of K and V, 2 bytes each.
        self.assertEqual(shapes["D2"]["bytes"], 3 * 41 * 2 * 2 * 128 * 2)
        self.assertEqual(shapes["D2"]["flops"], 4 * 3 * 41 * 8 * 128)
        self.assertEqual(shapes["D2"]["empty_step_by"], "begin, end")
        self.assertEqual(shapes["V1"]["empty_step_by"], "begin, abort")
        # Pages lie at random places: of 120 neighbours in the tables hardly one is one in the pool.
        self.assertLess(shapes["D6-p1"]["adjacent_share"], 0.1)
        self.assertIn("flat_us", shapes["C1"])

    def test_a_subcommand_runs_its_own_shapes(self):
        self.assertEqual(list(self.measured("copy")), ["S1"])
        self.assertEqual(list(self.measured("append", "--shapes", "A2,A1", "--seconds", 1)), ["A1", "A2"])

    def test_the_table_says_what_its_figures_are_not(self):
        done = run(self.tool, "--device", "cuda", "--tiny", "--shapes", "S1")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("Emulated device", "not the sizes of the shapes", "no figure says anything of a GPU"):
            self.assertIn(part, done.stdout)

    def test_a_device_that_is_not_there_is_refused(self):
        done = run(self.tool, "--device", "cuda:63")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("63", done.stderr)


if __name__ == "__main__":
    unittest.main()
