"""Directories of src/ are layers: a file includes only its own and lower ones; kernels know nothing of src/."""

import re

import tree

# Bottom to top, as ARCHITECTURE.md lists them.
LAYERS = ["base", "files", "tiers", "device", "plan", "transfer", "model_config", "pages", "prefix", "sequences", "step", "exec", "ops", "cache",
          "capi"]
# What of the kernels the host code may see, and from which layer on.
KERNEL_HEADERS = {"kernels/params.h": "base", "kernels/linear_params.h": "base", "kernels/visibility.h": "base", "kernels/mask.h": "exec", "kernels/cpu/digest.h": "base",
                  "kernels/step_words.h": "step", "kernels/op_tensors.h": "ops", "kernels/cpu/table.h": "exec"}
# Those of CUDA are for its wing alone.
CUDA_HEADERS = ("kernels/cuda/table.h", "kernels/cuda/step.h", "kernels/cuda/work.h")
CUDA_WING = ("src/device/", "src/exec/cuda/")
# What a layer must not see although it lies above: the C functions use a cache through its parts alone.
HIDDEN = {"capi": {"src/cache/cache_core.h"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def forbidden(path, included):
    """Why `path` must not include `included`, or None."""
    parts = path.split("/")
    target = included.split("/")
    if included in ("kvcache.h", "kvcache_api.h"):
        return "kernels do not know the C interface" if parts[0] == "kernels" else None
    if target[0] not in ("src", "kernels", "tools", "tests", "bench"):
        return "write includes from the root of the tree"
    if parts[0] == "kernels":
        return None if target[0] == "kernels" else "kernels include nothing from outside kernels/"
    if target[0] in ("tools", "tests", "bench"):
        return f"src/ includes nothing from {target[0]}/"
    if parts[1] not in LAYERS:
        return f"src/{parts[1]} is not a layer; tests/lint/layering.py lists them"
    own = LAYERS.index(parts[1])
    if target[0] == "kernels":
        if included in CUDA_HEADERS:
            return None if path.startswith(CUDA_WING) else "only " + " and ".join(CUDA_WING) + " know CUDA's kernels"
        lowest = KERNEL_HEADERS.get(included)
        if lowest is None:
            return "of the kernels, src/ sees only " + ", ".join((*KERNEL_HEADERS, *CUDA_HEADERS))
        return None if own >= LAYERS.index(lowest) else f"only {lowest} and the layers above see {included}"
    if target[1] not in LAYERS:
        return f"src/{target[1]} is not a layer"
    if included in HIDDEN.get(parts[1], ()):
        return f"{parts[1]} uses what it owns through functions of src/{target[1]}"
    return None if LAYERS.index(target[1]) <= own else f"{parts[1]} is below {target[1]}"


def check():
    findings = []
    for path in tree.c_files("src", "kernels"):
        for number, line in tree.lines_of(tree.code_only(tree.text(path), keep_strings=True)):
            match = INCLUDE.match(line)
            reason = match and forbidden(path, match.group(1))
            if reason:
                findings.append(f"{path}:{number}: includes {match.group(1)}: {reason}")
    return findings


if __name__ == "__main__":
    tree.finish("layering", check())
