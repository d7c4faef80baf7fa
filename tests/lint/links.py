"""Links of the Markdown pages into this repository lead to a file of the tree, and to a heading where they name one."""

import posixpath
import re

import tree

# Pages that package indexes show have absolute links.
HOME = "https://github.com/libkvcache/libkvcache/"
IN_TREE = re.compile(re.escape(HOME) + r"(?:blob|tree)/main/")
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
            absolute = IN_TREE.match(link)
            if not absolute and re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link[absolute.end():].partition("#") if absolute else link.partition("#")
            folder = "" if absolute else posixpath.dirname(path)
            target = posixpath.normpath(posixpath.join(folder, name)) if name else path
            if not (tree.ROOT / target).exists():
                findings.append(f"{path}: no such file: {link}")
            elif anchor and anchor not in anchors(tree.text(target)):
                findings.append(f"{path}: no such heading: {link}")
    return findings


if __name__ == "__main__":
    tree.finish("links", check())
