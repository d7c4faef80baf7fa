"""Counts that say how large and how plain the tree is: lines and files per part, class widths, retired words, chains of calls.

usage: figures.py [ROOT]: of another checkout. A chain of calls counts the files that a call passes through, each with the function that
takes it on; files that only prepare what is passed are not in it. "-": the checkout has no such chain.
"""

import pathlib
import re
import sys

import class_width
import tree
import words

PARTS = {
    "src": ("src/",),
    "kernels/cuda": ("kernels/cuda/",),
    "kernels, the rest": ("kernels/",),
    "bindings": ("bindings/",),
    "conformance runner, C++": ("tests/conformance/",),
    "conformance runner, Python": ("bindings/python/tests/conformance/",),
    "conformance runner, Rust": ("bindings/rust/kvcache/tests/conformance",),
    "conformance runner, Go": ("bindings/go/conformance/",),
}
CODE = (".cc", ".c", ".h", ".cu", ".cuh", ".py", ".rs", ".go", ".i", ".java")
# Mirrors of the ABI, and the line that a generated one begins with.
MIRRORS = ("bindings/rust/kvcache-sys/src/", "bindings/python/src/structs.c", "bindings/python/src/abi_structs.h")
GENERATED = re.compile(r"generated|do not edit", re.IGNORECASE)
CHAINS = {
    "files from kvc_attn to the CPU kernel": (
        ("src/capi/attention.cc", "call.attend("), ("src/cache/cache_forward.cc", "engine->attend("),
        ("src/exec/cpu/engine.cc", "runner_.run("), ("src/exec/cpu/work_list.cc", "attn_decode(params, item"),
        ("kernels/cpu/decode-inl.h", "void attn_decode("), ("kernels/cpu/decode_block-inl.h", "dot_block")),
    "hops from the CUDA table to the kernel": (
        ("kernels/cuda/runtime/backend.cc", "found->launch("), ("kernels/cuda/attn/mma/launch.cu", "attn_mma::launch_mma<"),
        ("kernels/cuda/attn/mma/launch_bf16.cu", "launch_mma<"), ("kernels/cuda/attn/mma/kernel.cuh", "__global__")),
}
CUDA_WING = ("src/device/", "src/exec/cuda/")
MOVES_BYTES = re.compile(r"virtual\s+[\w:]+\s+(copy\w*|promote|demote|enqueue)\s*\(")


def is_generated(path):
    return bool(GENERATED.search("\n".join(tree.text(path).split("\n")[:3])))


def lines(paths):
    return sum(tree.text(path).count("\n") for path in paths)


def main():
    if len(sys.argv) > 1:
        tree.ROOT = pathlib.Path(sys.argv[1]).resolve()
    files = [path for path in tree.all_files() if path.endswith(CODE) and not tree.is_frozen(path)]
    for name, prefixes in PARTS.items():
        paths = [path for path in files if path.startswith(prefixes)]
        if name == "kernels, the rest":
            paths = [path for path in paths if not path.startswith("kernels/cuda/")]
        print(f"{name:32} {len(paths):5} files {lines(paths):7} lines")
    mirrors = [path for path in files if path.startswith(MIRRORS) and not is_generated(path)]
    print(f"{'mirrors written by hand':32} {len(mirrors):5} files {lines(mirrors):7} lines")
    widths = sorted(((len(functions), name, path) for path in tree.c_files("src") if path.endswith(".h")
                     for name, _, functions in class_width.widths(path)), reverse=True)
    for count, name, path in widths[:8]:
        print(f"{name:32} {count:5} public functions ({path})")
    print(f"{'classes over 20':32} {sum(count > 20 for count, _, _ in widths):5}")
    moving = [f"{path}:{name}" for path in tree.c_files("src") if path.endswith(".h")
              for match in class_width.HEAD.finditer(tree.code_only(tree.text(path)))
              for name in [match.group(2)]
              if MOVES_BYTES.search(tree.code_only(tree.text(path))[
                  match.end():class_width.body_end(tree.code_only(tree.text(path)), match.end() - 1)])]
    print(f"{'interfaces that move bytes':32} {len(moving):5} {' '.join(moving)}")
    for name, pattern in (("include/kvcache.h", "include/kvcache.h"), ("src", "src/"), ("kernels", "kernels/")):
        wide = sum(len(line) > 100 for path in tree.c_files() if path.startswith(pattern)
                   for _, line in tree.lines_of(tree.text(path)))
        print(f"{'lines over 100 columns, ' + name:32} {wide:5}")
    print(f"{'retired words':32} {sum(1 for path in tree.c_files(*words.FOLDERS) for _ in words.retired(path)):5}")
    print(f"{'comments that continue a name':32} {sum(1 for path in tree.c_files(*words.FOLDERS) for _ in words.clauses(path)):5}")
    reach = sum(len(re.findall(r"\.cache\.\w+\(\)\.\w|self\.\w+\(\)\.\w", tree.code_only(tree.text(path))))
                for path in tree.c_files("src/capi"))
    print(f"{'ways of capi through Cache':32} {reach:5}")
    outside = sum(tree.text(path).count('#include "kernels/cuda/') for path in tree.c_files("src") if not path.startswith(CUDA_WING))
    print(f"{'includes of kernels/cuda outside its wing':42} {outside}")
    present = set(tree.all_files())
    for name, chain in CHAINS.items():
        known = all(path in present and part in tree.text(path) for path, part in chain)
        print(f"{name:42} {len(chain) if known else '-'}")


if __name__ == "__main__":
    main()
