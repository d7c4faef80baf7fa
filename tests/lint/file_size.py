"""No large files: data sets and build products do not belong here. How long a source file may be is a matter of its job."""

import tree

MAX_BYTES = 512 * 1024


def check():
    sizes = ((path, (tree.ROOT / path).stat().st_size) for path in tree.all_files())
    return [f"{path}: {size} bytes; at most {MAX_BYTES}" for path, size in sizes if size > MAX_BYTES]


if __name__ == "__main__":
    tree.finish("file_size", check())
