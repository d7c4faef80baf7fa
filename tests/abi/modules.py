"""Where libkvcache.so takes its modules from, shown with a library of the right name that leaves a mark when it is loaded.

Usage: modules.py <libkvcache.so> <C compiler>
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER = sys.argv.pop(2)
LIBRARY = pathlib.Path(sys.argv.pop(1)).resolve()
MODULE = "libkvcache_cuda.so"

# Appends its own path to the file that MARK names when it is loaded.
MARKING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void mark(void) {
  Dl_info self;
  FILE *file = fopen(getenv("MARK"), "a");
  if (file != NULL && dladdr((void *)mark, &self)) fprintf(file, "%s\\n", self.dli_fname);
  if (file != NULL) fclose(file);
}
"""

# argv: the library, a directory to go to before the first use or "-", a directory of modules or "-".
PROGRAM = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] != "-": os.chdir(sys.argv[2])
if sys.argv[3] != "-" and library.kvc_module_path_set(os.fsencode(sys.argv[3]), None): sys.exit("path refused")
if library.kvc_has_feature(b"cuda"): sys.exit("there is no back end here")
"""


class Modules(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name).resolve()
        source = self.root / "marking.c"
        source.write_text(MARKING)
        self.marking = self.root / "marking.so"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", self.marking, source, "-ldl"], check=True)

    def folder(self, name, *, library=False, module=False):
        folder = self.root / name
        folder.mkdir()
        if library:
            shutil.copy(LIBRARY, folder / "libkvcache.so.0")
        if module:
            shutil.copy(self.marking, folder / MODULE)
        return folder

    def loaded(self, library, *, search=None, change_to="-", path="-", cwd=None):
        """The modules that a process loads which asks for CUDA once."""
        mark = self.root / "mark"
        mark.unlink(missing_ok=True)
        environment = {**os.environ, "MARK": str(mark)}
        environment.pop("LD_LIBRARY_PATH", None)
        if search is not None:
            environment["LD_LIBRARY_PATH"] = str(search)
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(library), str(change_to), str(path)], env=environment,
                              cwd=cwd or self.root, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return mark.read_text().splitlines() if mark.exists() else []

    def test_the_search_path_of_the_linker_has_no_part_in_it(self):
        alone, other = self.folder("alone", library=True), self.folder("other", module=True)
        self.assertEqual(self.loaded(alone / "libkvcache.so.0", search=other), [])
        self.assertEqual(self.loaded(alone / "libkvcache.so.0", search=other, cwd=other), [])

    def test_a_module_lies_beside_the_library(self):
        both, other = self.folder("both", library=True, module=True), self.folder("other", module=True)
        self.assertEqual(self.loaded(both / "libkvcache.so.0", search=other), [str(both / MODULE)])

    def test_or_where_the_program_says(self):
        both, other = self.folder("both", library=True, module=True), self.folder("other", module=True)
        self.assertEqual(self.loaded(both / "libkvcache.so.0", path=other), [str(other / MODULE)])

    def test_a_library_that_was_loaded_by_a_relative_path_keeps_its_directory(self):
        both, other = self.folder("both", library=True, module=True), self.folder("other", module=True)
        self.assertEqual(self.loaded("libkvcache.so.0", search=".", cwd=both, change_to=other), [str(both / MODULE)])


if __name__ == "__main__":
    unittest.main()
