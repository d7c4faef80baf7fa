"""One word, one thing: retired words (the glossary of ARCHITECTURE.md has the present ones), and trailing comments that continue the code as a clause."""

import re

import tree

# Retired words of code and comments, with what replaces them. Whole words, or whole parts of an identifier between underscores.
RETIRED = {
    r"add_holder|drop_holder|holders?": "reference, refs, add_ref, drop_ref",
    r"vacant|make_vacant|evictable": "free, cached, available",
    r"TokenTrail|is_altered|touch_tables|steady_until": "TokenHistory, diverged, invalidate_tables, no_table_change_before",
    r"page_tokens": "page_size",
    r"seen_keys|SeenKeys|unseen": "visible range",
    r"turn_keys|turned|angles|Angles|\w*Angles": "RoPE, cos_sin",
    r"cut_box|BoxPlace": "TMA box",
    r"take_tile|Running|Walk": "process_tile, online softmax state, decode loop",
    r"leftovers|give_back|is_beside_capture|stream_beside_captures": "deferred frees, release, out-of-band call",
    r"combine|combining": "reduce_splits",
    r"op_view": "tensor_view, op_metadata",
}
# Identifiers and words that stay, each with the path below which it may stand: names of the public interface, words of mathematics.
ALLOWED = {
    ("angles", "kernels/cuda/rope/sine_cosine.h"),
}
CLAUSE = re.compile(r"\S\s*//\s*(that|who|what|of|for which|and)\b", re.IGNORECASE)
FOLDERS = ("src", "kernels", "tools")
# The public header has words of its own readers, so only its comments' form is checked.
CLAUSE_FOLDERS = (*FOLDERS, "include", "bench", "examples")
PATTERNS = [(re.compile(rf"(?<![A-Za-z])({words})(?![A-Za-z])"), better) for words, better in RETIRED.items()]
IDENTIFIER = re.compile(r"\w+")


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
