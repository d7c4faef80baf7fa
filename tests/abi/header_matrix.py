"""kvcache.h and kvcache_api.h compile alone, without a warning, in every supported language standard, with gcc and with clang.
Behind a DLPack of before 1.0, which has the same include guard, they say what is wrong.

Usage: header_matrix.py <folder that holds dlpack/dlpack.h>
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror", "-fsyntax-only"]
LANGUAGES = [("c", ["gcc", "clang"], ["c99", "c11", "c17"], ["-Wstrict-prototypes", "-Wc++-compat"]),
             ("cc", ["g++", "clang++"], ["c++11", "c++14", "c++17", "c++20"], ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"])]
# Nothing before the include: the header brings what it needs. The function keeps the translation unit from being empty.
HEADERS = ["kvcache.h", "kvcache_api.h"]
PROGRAM = "uint32_t user(void);\nuint32_t user(void) { return kvc_abi_version(); }\n"

OLD_DLPACK = """#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#define DLPACK_VERSION 80
typedef struct { void *data; } DLTensor;
#endif
"""
SENTENCE = "kvcache.h needs DLPack 1.0 or later: an older dlpack.h was found or included before"


def accepts_old_dlpack(compiler, folder, includes):
    """Whether the sentence is missing where a program has included an older DLPack."""
    source = pathlib.Path(folder) / "old.c"
    (source.parent / "old_dlpack.h").write_text(OLD_DLPACK)
    source.write_text('#include "old_dlpack.h"\n#include <kvcache.h>\n')
    result = subprocess.run([compiler, "-fsyntax-only", *includes, str(source)], capture_output=True, text=True)
    if result.returncode and SENTENCE in result.stderr:
        return False
    print(f"{compiler}, behind an older DLPack: {result.stderr}")
    return True


def main():
    includes = ["-I", str(ROOT / "include"), "-isystem", sys.argv[1]]
    failed = compiled = 0
    with tempfile.TemporaryDirectory() as folder:
        for suffix, compilers, standards, extra in LANGUAGES:
            source = pathlib.Path(folder) / f"alone.{suffix}"
            for header, compiler in [(header, compiler) for header in HEADERS for compiler in compilers]:
                source.write_text(f"#include <{header}>\n" * 2 + PROGRAM)
                if not shutil.which(compiler):
                    print(f"header_matrix: {compiler} is not installed (make deps)")
                    failed += 1
                    continue
                for standard in standards:
                    result = subprocess.run([compiler, f"-std={standard}", *STRICT, *extra, *includes, str(source)],
                                            capture_output=True, text=True)
                    compiled += 1
                    if result.returncode:
                        failed += 1
                        print(f"{header}, {compiler} -std={standard}:\n{result.stderr}")
        compilers = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
        compiled += len(compilers)
        failed += sum(accepts_old_dlpack(compiler, folder, includes) for compiler in compilers)
    print(f"header_matrix: {compiled} compilations, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
