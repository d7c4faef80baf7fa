"""One word, one thing: retired words (the glossary of ARCHITECTURE.md has the present ones), and comments that continue a name as a clause."""

import re

import tree

# Retired words of code and comments, with what replaces them. Whole words, either case; "\w*" where every form is meant.
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
# Names of the public interface, which keep the word.
PUBLIC = re.compile(r"\bpages_evictable\b|\bpage_tokens\b")
CLAUSE = re.compile(r"\S\s*//\s*(that|who|what|of|for which|and)\b", re.IGNORECASE)
FOLDERS = ("src", "kernels", "tools")
PATTERNS = [(re.compile(rf"(?<![A-Za-z])({words})(?![A-Za-z])"), better) for words, better in RETIRED.items()]


def retired(path):
    for number, line in tree.lines_of(tree.text(path)):
        line = PUBLIC.sub("", line)
        for pattern, better in PATTERNS:
            for match in pattern.finditer(line):
                yield number, f"\"{match.group(1)}\" is retired: {better}"


def clauses(path):
    for number, line in tree.lines_of(tree.text(path)):
        match = CLAUSE.search(line)
        if match:
            yield number, f"a comment that begins with \"{match.group(1)}\" continues the code as a clause"


def check():
    findings = []
    for path in tree.c_files(*FOLDERS):
        for number, what in [*retired(path), *clauses(path)]:
            findings.append(f"{path}:{number}: {what}")
    return findings


if __name__ == "__main__":
    tree.finish("words", check())
