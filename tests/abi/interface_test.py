"""tests/abi/interface.py finds what may happen to a header, and asks the changelog for it.

Usage: interface_test.py <C compiler> <folder that holds dlpack/dlpack.h>
"""

import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import interface

COMPILER, DLPACK = sys.argv.pop(1), sys.argv.pop(1)
HEADERS = {name: (interface.ROOT / "include" / name).read_text() for name in interface.HEADERS}


class Interface(unittest.TestCase):
    """Each test changes the header of today; what it was compared with is the header of today as well."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.stored = pathlib.Path(cls.folder.name) / "stored.abi"
        library = interface.stub(COMPILER, DLPACK, interface.ROOT / "include" / "kvcache_api.h", cls.folder.name)
        cls.stored.write_text(interface.describe(library))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def after(self, pattern, replacement, name="kvcache.h"):
        """(added, changed) once `pattern` is replaced in the header `name`."""
        text, count = re.subn(pattern, replacement, HEADERS[name], count=1)
        self.assertEqual(count, 1, pattern)
        with tempfile.TemporaryDirectory() as folder:
            for each in HEADERS:
                (pathlib.Path(folder) / each).write_text(text if each == name else HEADERS[each])
            header = pathlib.Path(folder) / "kvcache_api.h"
            return interface.compare(self.stored, interface.stub(COMPILER, DLPACK, header, folder))[:2]

    def test_the_same_header_has_no_difference(self):
        self.assertEqual(self.after(r"\A", "\n"), (set(), set()))

    def test_a_new_function_is_new(self):
        new = r"\nKVC_API kvc_status kvc_brand_new(const kvc_plan *plan, int64_t n) KVC_NOEXCEPT;\n"
        self.assertEqual(self.after(r"\n(?=KVC_API kvc_status kvc_cache_check\()", new), ({"kvc_brand_new"}, set()))

    def test_a_function_that_went_has_changed(self):
        self.assertEqual(self.after(r"\nKVC_API kvc_status kvc_cache_check\([^;]*;", ""), (set(), {"kvc_cache_check"}))

    def test_another_parameter_is_a_change(self):
        self.assertEqual(self.after(r"kvc_prefix_evict\(kvc_cache \*cache, int64_t", "kvc_prefix_evict(kvc_cache *cache, int32_t"),
                         (set(), {"kvc_prefix_evict"}))

    def test_fields_that_come_go_or_move_are_changes_of_their_struct(self):
        self.assertEqual(self.after(r"\n\} kvc_plan_info;", "\n  int64_t brand_new;\n} kvc_plan_info;"), (set(), {"kvc_plan_info"}))
        self.assertEqual(self.after(r"int64_t detail;", "int32_t detail;"), (set(), {"kvc_error"}))
        self.assertEqual(self.after(r"\n\} kvc_api;", "\n  kvc_status (*brand_new)(int);\n} kvc_api;", "kvcache_api.h"), (set(), {"kvc_api"}))

    def test_the_changelog_has_to_name_what_is_new_and_what_changed(self):
        entries = interface.unreleased("# Changes\n\n## Unreleased\n\n### Added\n\n- api: `kvc_a`, and\n  `kvc_b`.\n- fix: `kvc_c`.\n- abi: `kvc_d`.\n"
                                       "\n## 0.1\n\n- abi: `kvc_e`.\n")
        self.assertEqual(interface.undocumented({"kvc_a", "kvc_b"}, {"kvc_d"}, entries), [])
        for added, changed in (({"kvc_c"}, set()), (set(), {"kvc_a"}), (set(), {"kvc_e"}), ({"kvc_"}, set())):
            self.assertEqual(len(interface.undocumented(added, changed, entries)), 1, (added, changed))


if __name__ == "__main__":
    if not shutil.which("abidiff"):
        print("interface: skipped, abidiff is not installed (Debian: abigail-tools)")
        sys.exit(interface.SKIPPED)
    unittest.main()
