"""One word, one thing: the retired words of ARCHITECTURE.md, and trailing comments that continue the code as a clause."""

import re

import tree

ROW = re.compile(r"^\|(.+)\|(.+)\|$")
CODE = re.compile(r"`([^`]+)`")

# Identifiers and words that stay, each with the path below which it may stand: names of the public interface and of other
# libraries, words of mathematics.
ALLOWED = {
    ("angles", "kernels/cuda/rope/sine_cosine.h"),
    ("combining_class", "tools/tokeniser/normal_form.cc"),
}
CLAUSE = re.compile(r"\S\s*//\s*(that|who|what|of|for which|and)\b", re.IGNORECASE)
FOLDERS = ("src", "kernels", "tools", "bench")
# The public header has words of its own readers, so only its comments' form is checked.
CLAUSE_FOLDERS = (*FOLDERS, "include", "examples")
IDENTIFIER = re.compile(r"\w+")


def table():
    """Pairs of a pattern and what replaces it, of the table "retired" of ARCHITECTURE.md. Whole words, or whole parts of an identifier."""
    rows = tree.text("ARCHITECTURE.md").split("| retired | now |")[1].strip().split("\n")
    pairs = []
    for row in map(ROW.match, rows):
        words = "|".join(map(re.escape, CODE.findall(row.group(1)))) if row else ""
        if words:
            pairs.append((re.compile(rf"(?<![A-Za-z])({words})(?![A-Za-z])"), row.group(2).strip()))
    return pairs


PATTERNS = table()


def is_allowed(word, path):
    return any(word == allowed and path.startswith(where) for allowed, where in ALLOWED)


def identifier_at(line, position):
    """The whole identifier around a position: `num_evictable` for a match of `evictable`."""
    return next(match.group() for match in IDENTIFIER.finditer(line) if match.start() <= position < match.end())


def retired(path):
    for number, line in tree.lines_of(tree.text(path)):
        for pattern, better in PATTERNS:
            for match in pattern.finditer(line):
                if not is_allowed(identifier_at(line, match.start()), path):
                    yield number, f"\"{match.group(1)}\" is retired: {better}"


def clauses(path):
    for number, line in tree.lines_of(tree.text(path)):
        match = CLAUSE.search(line)
        if match:
            yield number, f"a comment that begins with \"{match.group(1)}\" continues the code as a clause"


def check():
    findings = []
    for folders, find in ((FOLDERS, retired), (CLAUSE_FOLDERS, clauses)):
        for path in tree.c_files(*folders):
            findings += [f"{path}:{number}: {what}" for number, what in find(path)]
    return findings


if __name__ == "__main__":
    tree.finish("words", check())
