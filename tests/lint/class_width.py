"""How many public functions classes have. A wide one may be two classes, which its readers decide: this lists them and refuses none.

Counted are functions that callers name: not constructors, destructors, operators and friends. Overloads count once.
"""

import re

import tree

WIDE = 15
HEAD = re.compile(r"\b(class|struct)\s+(?:\[\[\w+\]\]\s+)?(\w+)(?:\s+final)?\s*(?::(?!:)[^;{}()]*)?\{")
FUNCTION = re.compile(r"(?<![\w.>~])(\w+)\s*\(")
NOT_A_FUNCTION = {"if", "for", "while", "switch", "return", "sizeof", "alignas", "static_assert", "decltype", "noexcept"}


def body_end(code, begin):
    depth = 0
    for i in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code)


def members(body):
    """Statements of a class body at its own depth, with the access that holds for each."""
    statement, depth, access = "", 0, None
    for char in body:
        if char == "{":
            depth += 1
            if depth == 1:
                statement += " {"
        elif char == "}":
            depth -= 1
            # A function's body ends it; a braced initialiser goes on to its semicolon.
            if depth == 0 and re.search(r"\)[\w\s:,(){}>&*-]*\{$", statement):
                yield access, statement
                statement = ""
        elif depth == 0:
            if char == ";":
                yield access, statement
                statement = ""
            elif char == ":" and re.fullmatch(r"\s*(public|protected|private)\s*", statement):
                access, statement = statement.strip(), ""
            else:
                statement += char


def public_functions(kind, name, body):
    names = set()
    for access, statement in members(body):
        if (access or ("private" if kind == "class" else "public")) != "public":
            continue
        if re.match(r"\s*(friend|using|typedef|struct|class|enum|template\s*<[^>]*>\s*friend)\b", statement):
            continue
        # Default arguments and initialisers are no declarators.
        match = FUNCTION.search(re.sub(r"^\s*template\s*<[^>]*>", "", statement.split("=")[0]))
        if match and match.group(1) not in NOT_A_FUNCTION | {name} and "operator" not in statement:
            names.add(match.group(1))
    return names


def widths(path):
    """(class, line, public functions) of a file."""
    code = tree.code_only(tree.text(path))
    for match in HEAD.finditer(code):
        body = code[match.end():body_end(code, match.end() - 1)]
        yield match.group(2), code.count("\n", 0, match.start()) + 1, public_functions(match.group(1), match.group(2), body)


def wide():
    for path in tree.c_files("src", "kernels", "tools", "bench"):
        for name, line, functions in widths(path):
            if len(functions) >= WIDE:
                yield f"{path}:{line}: {name} has {len(functions)} public functions"


if __name__ == "__main__":
    for finding in wide():
        print(finding)
    tree.finish("class_width", [])
