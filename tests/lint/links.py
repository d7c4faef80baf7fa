"""Relative links of the Markdown pages lead to a file of the tree, and to a heading where they name one."""

import posixpath
import re

import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page):
    """Headings as the usual renderers name them: lower case, punctuation gone, blanks to hyphens."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def check():
    findings = []
    for path in tree.all_files():
        if not path.endswith(".md"):
            continue
        for link in LINK.findall(FENCED.sub("", tree.text(path))):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
            if not (tree.ROOT / target).exists():
                findings.append(f"{path}: no such file: {link}")
            elif anchor and anchor not in anchors(tree.text(target)):
                findings.append(f"{path}: no such heading: {link}")
    return findings


if __name__ == "__main__":
    tree.finish("links", check())
