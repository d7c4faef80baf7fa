"""The checks' own promises: what a cache may do to a build and what it may not, which files a part depends on, which tests a change
has."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import cache
import changed
import parts
import programs
import run

ROOT = cache.ROOT
LAUNCHER = ROOT / ".ci" / "ccache"


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def call(self, *words, **environment):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, **{name: str(value) for name, value in environment.items()}})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done


class CacheFolder(Scratch):
    def ask(self, *words, cache_home):
        return self.call(sys.executable, "-B", ROOT / "tests/checks/cache.py", *words, XDG_CACHE_HOME=cache_home)

    def test_a_folder_is_the_same_until_its_files_change(self):
        pins = self.folder / "pins"
        pins.write_text("one")
        first = self.ask("folder", "x", pins, cache_home=self.folder).stdout
        self.assertEqual(first, self.ask("folder", "x", pins, cache_home=self.folder).stdout)
        pins.write_text("two")
        self.assertNotEqual(first, self.ask("folder", "x", pins, cache_home=self.folder).stdout)

    def test_a_place_that_cannot_be_written_is_named_and_replaced(self):
        (self.folder / "file").touch()
        done = self.ask("folder", "x", cache_home=self.folder / "file")
        self.assertIn("cannot be written", done.stderr)
        self.assertTrue(done.stdout.startswith(str(ROOT / "build" / "cache")), done.stdout)
        shutil.rmtree(done.stdout.strip())

    def test_what_was_left_half_made_is_made_again(self):
        folder = pathlib.Path(self.ask("folder", "x", cache_home=self.folder).stdout.strip())
        (folder / "ready").unlink()
        (folder / "half").touch()
        again = pathlib.Path(self.ask("folder", "x", cache_home=self.folder).stdout.strip())
        self.assertEqual(folder, again)
        self.assertEqual([entry.name for entry in again.iterdir()], ["ready"])

    def test_what_nobody_used_for_long_goes(self):
        old = pathlib.Path(self.ask("folder", "old", cache_home=self.folder).stdout.strip())
        os.utime(old / "ready", (0, 0))
        self.ask("folder", "new", cache_home=self.folder)
        self.assertFalse(old.exists())


@unittest.skipUnless(shutil.which("ccache") and shutil.which("gcc"), "there is no ccache or no gcc here")
class CompilerCache(Scratch):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        (self.folder / "x.c").write_text("int value = VALUE;\n")

    def compiler(self, value):
        """A compiler called gcc, always as long and as old."""
        path = self.bin / "gcc"
        path.write_text(f"#!/bin/sh\nexec {shutil.which('gcc')} -DVALUE={value} \"$@\"\n")
        path.chmod(0o755)
        os.utime(path, (1e9, 1e9))

    def compiled(self, cache_folder):
        self.call(LAUNCHER, self.bin / "gcc", "-c", "x.c", "-o", "x.o", CCACHE_DIR=cache_folder, CCACHE_BASEDIR=self.folder)
        return (self.folder / "x.o").read_bytes()

    def test_another_compiler_behind_the_same_name_is_noticed(self):
        self.compiler(1)
        one = self.compiled(self.folder / "cache")
        self.compiler(2)
        self.assertNotEqual(one, self.compiled(self.folder / "cache"))

    def test_damaged_entries_are_compiled_again(self):
        self.compiler(1)
        one = self.compiled(self.folder / "cache")
        entries = [path for path in (self.folder / "cache").rglob("*[RM]") if path.is_file()]
        self.assertTrue(entries)
        for path in entries:
            path.write_bytes(path.read_bytes()[:20])
        self.assertEqual(one, self.compiled(self.folder / "cache"))

    def test_a_folder_that_cannot_be_written_costs_the_cache_and_not_the_build(self):
        self.compiler(1)
        (self.folder / "file").touch()
        self.assertTrue(self.compiled(self.folder / "file" / "cache"))
        self.assertEqual((self.folder / "file").read_bytes(), b"")

    def test_two_clones_share_what_they_compile(self):
        source = self.folder / "x.c"
        objects = []
        for clone in ("one", "two"):
            (self.folder / clone / "build").mkdir(parents=True)
            (self.folder / clone / "include").mkdir()
            (self.folder / clone / "include" / "x.h").write_text("int other;\n")
            (self.folder / clone / "x.c").write_text(f'#include "x.h"\n{source.read_text()}')
            subprocess.run([LAUNCHER, shutil.which("gcc"), "-g1", f"-I{self.folder / clone}/include", "-DVALUE=1", "-c",
                            self.folder / clone / "x.c", "-o", "x.o"], cwd=self.folder / clone / "build", check=True,
                           env={**os.environ, "CCACHE_DIR": str(self.folder / "cache"), "CCACHE_BASEDIR": str(self.folder / clone)})
            objects.append((self.folder / clone / "build" / "x.o").read_bytes())
        self.assertEqual(*objects)
        counted = self.call("ccache", "--print-stats", CCACHE_DIR=self.folder / "cache").stdout
        self.assertRegex(counted, r"direct_cache_hit\s+1\b")


class Parts(unittest.TestCase):
    def test_patterns_are_those_of_git(self):
        for path, pattern, fits in (("src/a/b.cc", "src/**", True), ("src/b.cc", "src/*.cc", True), ("src/a/b.cc", "src/*.cc", False),
                                    ("kernels/cuda/CMakeLists.txt", "kernels/**/CMakeLists.txt", True),
                                    ("kernels/CMakeLists.txt", "kernels/**/CMakeLists.txt", True), ("srcs/a", "src/**", False)):
            self.assertEqual(run.matches(path, pattern), fits, (path, pattern))

    def test_every_pattern_of_a_part_fits_a_file(self):
        files = run.files_of_tree()
        for part in parts.all_parts():
            for pattern in part.inputs:
                self.assertTrue(any(run.matches(name, pattern) for name in files), f"{part.name}: nothing fits {pattern}")

    def test_what_tier_1_leaves_has_a_reason(self):
        for part in parts.all_parts():
            if part.tier_1 != part.tier_2 and part.tier_2:
                self.assertTrue(part.left, part.name)

    def test_every_test_target_of_the_makefile_is_in_a_part(self):
        made = set(re.findall(r"^(test-[\w-]+|fuzz|clients|reliability|packages):", (ROOT / "Makefile").read_text(), re.M))
        text = " ".join(f"{part.tier_1} {part.tier_2}" for part in parts.all_parts())
        self.assertEqual({name for name in made if not re.search(rf"\b{name}\b", text)}, set())


class Changes(unittest.TestCase):
    def test_every_folder_has_tests(self):
        for path in run.files_of_tree():
            if "/" in path:
                self.assertTrue(any(path.startswith(prefix) for prefix, _ in changed.TABLE), f"changed.py has no line for {path}")

    def test_every_line_of_the_table_fits_a_file_and_names_what_exists(self):
        files = run.files_of_tree()
        for prefix, entries in changed.TABLE:
            self.assertTrue(any(path.startswith(prefix) for path in files), f"nothing lies in {prefix}")
            for entry in entries:
                word, _, rest = entry.partition(" ")
                self.assertTrue(entry in programs.PROGRAMS or word in ("target", "ctest", "all") or (ROOT / rest.split()[0]).is_file(), entry)

    def test_a_file_of_tests_runs_its_own_suites(self):
        runs, rest = changed.chosen_runs(["tests/capi/windows_test.cc"])
        self.assertEqual(list(runs), ["capi"])
        self.assertTrue(runs["capi"] and not rest)
        runs, _ = changed.chosen_runs(["tests/capi/windows_test.cc", "tests/capi/fixture.h"])
        self.assertIsNone(runs["capi"])


if __name__ == "__main__":
    unittest.main()
