"""tools/abi reads a header as it is meant, and notices what changes in it.

Usage: describe_test.py <folder that holds dlpack/dlpack.h>
"""

import pathlib
import re
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "abi"))
import describe  # noqa: E402
import generate  # noqa: E402
import rust  # noqa: E402

DLPACK = sys.argv.pop(1)
SKIPPED = 77
REAL = describe.HEADER.read_text()
SMALL = """
#include <stdint.h>
#include <stddef.h>
#include <dlpack/dlpack.h>
#define KVC_ABI_VERSION_MAJOR 3
#define KVC_ABI_VERSION_MINOR 4
#define KVC_API __attribute__((visibility("default")))
#define KVC_NULLABLE

/* ==== */
/* Chapter */
/* ==== */

typedef struct kvc_box kvc_box; /* what holds things */

/* Which colour.
 *   RED   as in a table
 *   BLUE  below it */
typedef int32_t kvc_colour;
enum kvc_colour_value : int32_t {
  KVC_COLOUR_RED = 0, /* the first,
                         and the warmest */
  KVC_COLOUR_BLUE = 7
};

/* Bits of kvc_item.flags. */
enum kvc_item_flag { KVC_ITEM_NEW = 1 /* never used */, KVC_ITEM_OLD = 2 };
enum kvc_item_limit { KVC_NO_ITEM = -2 };

/* One item. */
typedef struct kvc_item {
  size_t struct_size;
  uint64_t flags;
  /* Above its field. */
  const float *KVC_NULLABLE type;
  int32_t low, high; /* both ends */
  char name[8];
  void (*run)(void *user, int64_t (*step)(void *arg, int32_t at), void *arg);
} kvc_item;

/* Adds an item: a sentence.
 * Threading: any. */
KVC_API int32_t kvc_box_add(kvc_box *box, const kvc_item *const *items,
                            struct DLManagedTensorVersioned *KVC_NULLABLE *KVC_NULLABLE out);

/* Not of kvc_count. */

KVC_API uint32_t kvc_count(void);
"""

ADD_IN_RUST = """    /// Adds an item: a sentence.
    ///
    /// ```text
    /// Threading: any.
    /// ```
    pub fn kvc_box_add(
        box_: *mut kvc_box,
        items: *const *const kvc_item,
        out: *mut *mut DLManagedTensorVersioned,
    ) -> i32;
"""


def described(text, stored=None):
    with tempfile.TemporaryDirectory() as folder:
        header = pathlib.Path(folder) / "kvcache.h"
        header.write_text(text)
        return describe.describe(DLPACK, stored or {}, header)


def by_name(description):
    return {one["name"]: one for one in description["declarations"] if "name" in one}


def changed(pattern, replacement):
    """The header of today with one change."""
    text, count = re.subn(pattern, replacement, REAL, count=1)
    assert count == 1, pattern
    return text


class SmallHeader(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.description = described(SMALL)
        cls.found = by_name(cls.description)

    def test_comments_belong_to_what_they_stand_beside(self):
        self.assertEqual(self.found["kvc_box"]["doc"], ["what holds things"])
        self.assertEqual(self.found["kvc_colour"]["doc"],
                         ["Which colour.", "  RED   as in a table", "  BLUE  below it"])
        red, blue = self.found["kvc_colour"]["values"]
        self.assertEqual((red["value"], red["doc"]), (0, ["the first,", "and the warmest"]))
        self.assertEqual((blue["value"], blue["doc"]), (7, []))
        self.assertEqual(self.found["kvc_count"]["doc"], [])

    def test_fields_have_the_types_of_the_compiler_and_the_names_of_the_text(self):
        fields = {one["name"]: one for one in self.found["kvc_item"]["fields"]}
        self.assertEqual(list(fields),
                         ["struct_size", "flags", "type", "low", "high", "name", "run"])
        self.assertEqual(fields["type"], {"name": "type", "type": "const float *", "nullable": 1,
                                          "doc": ["Above its field."]})
        self.assertEqual([fields[name]["doc"] for name in ("low", "high")], [["both ends"]] * 2)
        self.assertEqual(fields["name"]["type"], "char[8]")
        step = fields["run"]["type"]["parameters"][1]
        self.assertEqual(step, {"name": "step", "type": {"returns": "int64_t", "parameters": [
            {"name": "arg", "type": "void *"}, {"name": "at", "type": "int32_t"}]}})

    def test_an_enum_without_a_name_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "the enum of KVC_NO_ITEM has no name"):
            described(SMALL.replace("enum kvc_item_limit {", "enum {"))

    def test_an_enum_has_the_type_of_its_values(self):
        with self.assertRaisesRegex(SystemExit, "values of enum kvc_colour_value are uint32_t"):
            described(SMALL.replace("kvc_colour_value : int32_t", "kvc_colour_value"))

    def test_functions_keep_their_parameters(self):
        add = self.found["kvc_box_add"]
        self.assertEqual(add["returns"], "int32_t")
        self.assertEqual([one["type"] for one in add["parameters"]],
                         ["kvc_box *", "const kvc_item *const *",
                          "struct DLManagedTensorVersioned **"])
        self.assertEqual([one.get("nullable") for one in add["parameters"]],
                         [None, None, 2])
        self.assertEqual(self.found["kvc_count"]["parameters"], [])

    def test_rust_gets_the_same(self):
        types = rust.types(self.description)
        for wanted in ("pub const KVC_ABI_VERSION_MINOR: u32 = 4;",
                       "        KVC_COLOUR_BLUE = 7,",
                       "/// Never used.\npub const KVC_ITEM_NEW: u64 = 1;",
                       "pub const KVC_NO_ITEM: i32 = -2;",
                       "    pub type_: *const f32,",
                       "    pub name: [c_char; 8],",
                       'step: Option<unsafe extern "C" fn(arg: *mut c_void, at: i32) -> i64>,'):
            self.assertIn(wanted, types)
        self.assertIn(ADD_IN_RUST, rust.functions(self.description))

    def test_the_layout_is_that_of_the_machine(self):
        slots = generate.slots_of(self.description)
        layout = generate.layouts_of(self.description, slots)["kvc_item"]
        self.assertEqual((layout["size"], layout["align"]), (48, 8))
        self.assertEqual(layout["fields"]["run"], [40, 8])


class FunctionTable(unittest.TestCase):
    def test_a_new_function_gets_the_slot_behind_the_last_one(self):
        stored = {"table": {"3.3": ["kvc_count"]}}
        self.assertEqual(described(SMALL, stored)["table"],
                         {"3.3": ["kvc_count"], "3.4": ["kvc_box_add"]})

    def test_a_function_that_went_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "kvc_gone"):
            described(SMALL, {"table": {"3.3": ["kvc_gone", "kvc_count"]}})


class TodaysHeader(unittest.TestCase):
    """Whatever changes in the header changes the description, so that the comparison fails."""

    def assert_noticed(self, pattern, replacement):
        description = described(changed(pattern, replacement), describe.load())
        self.assertNotEqual(describe.as_text(description), describe.STORED.read_text())

    def test_nothing_changed(self):
        description = described(REAL, describe.load())
        self.assertEqual(describe.as_text(description), describe.STORED.read_text())

    def test_changes_are_noticed(self):
        for pattern, replacement in (
                (r"KVC_E_IO = 17", "KVC_E_IO = 18"),
                (r"int32_t sys_code;", "uint32_t sys_code;"),
                (r"int32_t sys_code;", "int32_t code;"),
                (r"kvc_fence_query\(const kvc_fence", "kvc_fence_query(kvc_fence"),
                (r"#define KVC_ABI_VERSION_MINOR \d+", "#define KVC_ABI_VERSION_MINOR 99"),
                (r"char message\[488\];", "char message[480];")):
            with self.subTest(replacement):
                self.assert_noticed(pattern, replacement)


if __name__ == "__main__":
    if not shutil.which("clang"):
        print("describe: skipped, clang is not installed (make deps)")
        sys.exit(SKIPPED)
    unittest.main()
