"""No line of C, C++ or CUDA is wider than 100 columns, comments included."""

import tree

WIDTH = 100


def check():
    return [f"{path}:{number}: {len(line)} columns, {WIDTH} at most"
            for path in tree.c_files() if not tree.is_frozen(path)
            for number, line in tree.lines_of(tree.text(path)) if len(line) > WIDTH]


if __name__ == "__main__":
    tree.finish("columns", check())
