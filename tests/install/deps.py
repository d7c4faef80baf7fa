"""`make deps` as somebody without root, with root, and with an answer: sudo runs only when it was asked for.

The programs that look at packages and install them are stand-ins, so nothing of the machine changes.
Usage: deps.py
"""

import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

DEPS = pathlib.Path(__file__).resolve().parents[2] / ".ci/deps"


class Deps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        self.user(1000)
        self.program("dpkg-query", "exit 1")
        self.program("sudo", f'echo "sudo $*" >> {self.log}')
        self.program("apt-get", f'echo "apt-get $*" >> {self.log}')
        self.program("cmake", "exit 0")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def user(self, number):
        self.program("id", f"echo {number}")

    def run_deps(self, *arguments, stdin=subprocess.DEVNULL, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "KVCACHE_SUDO"}
        environment |= {"PATH": f"{self.folder}:{environment['PATH']}", **variables}
        done = subprocess.run([DEPS, *arguments], stdin=stdin, capture_output=True, text=True, env=environment, timeout=300)
        return done.returncode, done.stdout + done.stderr, self.log.read_text() if self.log.exists() else ""

    def answered(self, answer):
        user, terminal = pty.openpty()
        try:
            os.write(user, answer)
            return self.run_deps(stdin=terminal)
        finally:
            os.close(user)
            os.close(terminal)

    def test_without_a_terminal_the_command_is_shown_and_nothing_runs(self):
        status, said, log = self.run_deps()
        self.assertEqual((status, log), (1, ""))
        self.assertIn("sudo apt-get install --no-install-recommends g++ cmake", said)
        self.assertIn("KVCACHE_SUDO=1", said)

    def test_no_is_the_answer_unless_yes_is_given(self):
        for answer in (b"\n", b"n\n"):
            status, _, log = self.answered(answer)
            self.assertEqual((status, log), (1, ""), answer)

    def test_yes_installs_with_sudo(self):
        status, said, log = self.answered(b"y\n")
        self.assertEqual(status, 0, said)
        self.assertRegex(log, "sudo apt-get update -qq\nsudo env .*apt-get install .*libgtest-dev")

    def test_a_variable_says_yes_before(self):
        status, said, log = self.run_deps(KVCACHE_SUDO="1")
        self.assertEqual(status, 0, said)
        self.assertIn("apt-get install", log)

    def test_root_installs_at_once_and_without_sudo(self):
        self.user(0)
        status, said, log = self.run_deps()
        self.assertEqual(status, 0, said)
        self.assertIn("apt-get install", log)
        self.assertNotIn("sudo", log)

    def test_the_build_alone_needs_nothing_of_the_tests(self):
        self.user(0)
        status, said, log = self.run_deps("build")
        self.assertEqual(status, 0, said)
        self.assertIn("libcli11-dev", log)
        for package in ("libgtest-dev", "clang", "libboost", "python3-dev"):
            self.assertNotIn(package, log)

    def test_nothing_is_said_when_all_is_there(self):
        self.program("dpkg-query", "echo 'ii '")
        self.assertEqual(self.run_deps(), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
