"""Writes cases/ from scenarios/: each call with its arguments and its expected results.

Usage: write_cases.py [--check]: with it nothing is written, and a case that differs is an error.
README.md describes both formats.
"""

import json
import pathlib
import sys

from scenario import Fields, check_read
from steps import Writer

HERE = pathlib.Path(__file__).parent


def text_of(case):
    """One line for each step."""

    def line(x):
        return json.dumps(x, separators=(",", ":"))

    head = "".join(f'"{key}":{line(x)},\n' for key, x in case.items() if key != "steps")
    return "{" + head + '"steps":[\n' + ",\n".join(line(step) for step in case["steps"]) + "\n]}\n"


def same(a, b):
    """Equal up to the last digit of expected numbers: C libraries round exp and cos differently."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return None not in (a, b) and abs(a - b) <= 1e-7 * max(1, abs(b))
    return a == b and isinstance(a, type(b))


def main():
    check, wrong, names = "--check" in sys.argv[1:], [], set()
    for path in sorted((HERE / "scenarios").glob("*.json")):
        scenario = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=Fields)
        try:
            if scenario["name"] != path.stem:
                raise ValueError("a scenario is named as its file")
            case = Writer(scenario).case()
            check_read(scenario, "scenario")
        except Exception as error:
            raise SystemExit(f"{path.name}: {error}") from error
        (HERE / "cases").mkdir(exist_ok=True)
        target = HERE / "cases" / path.name
        names.add(path.name)
        if not check:
            target.write_text(text_of(case), encoding="utf-8")
        elif not target.exists() or not same(json.loads(target.read_text(encoding="utf-8")),
                                             json.loads(text_of(case))):
            wrong.append(path.name)
    for path in (HERE / "cases").glob("*.json"):
        if path.name not in names:
            wrong.append(path.name)
            if not check:
                path.unlink()
    if check and wrong:
        raise SystemExit(
            f"cases/ is not what scenarios/ say, run write_cases.py: {', '.join(wrong)}"
        )
    print(f"{len(names)} cases")


if __name__ == "__main__":
    main()
