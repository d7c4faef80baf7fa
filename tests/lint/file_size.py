"""Files with one job: 100 to 400 lines as a rule. The limits lie well above, so that only a real outgrowth fails."""

import tree

MAX_LINES = {"src": 600, "kernels": 600, "tools": 500, "bench": 500, "examples": 300, "tests": 800}
MAX_BYTES = 512 * 1024  # of any file: data sets and build products do not belong here
CODE = (".cc", ".c", ".h", ".cu", ".cuh", ".py", ".rs", ".go", ".i")


def check():
    findings = []
    for path in tree.all_files():
        size = (tree.ROOT / path).stat().st_size
        if size > MAX_BYTES:
            findings.append(f"{path}: {size} bytes; at most {MAX_BYTES}")
            continue
        if tree.is_frozen(path):
            continue
        limit = MAX_LINES.get(path.split("/")[0])
        if limit and path.endswith(CODE):
            lines = tree.text(path).count("\n")
            if lines > limit:
                findings.append(f"{path}: {lines} lines; at most {limit}: split it by job")
    return findings


if __name__ == "__main__":
    tree.finish("file_size", check())
