"""Holds the machine code of every CUDA kernel against tests/cuda/budgets.json: registers, size, matrix instructions, kinds of memory access.

    budgets.py OBJECTS            compares; OBJECTS is kernels/cuda of a build folder
    budgets.py OBJECTS --write    writes what is there, to be read as a difference before it is committed

Worse is a failure, better a remark. Figures hold for one compiler: with another one this says so and is skipped (status 77).
The rules in the file are written by hand and hold for any compiler: see kernels/cuda/README.md.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import shutil
import sys

import sass

BUDGETS = pathlib.Path(__file__).with_name("budgets.json")
SKIPPED = 77
# More instructions than this over the budget: code grew. Scheduling alone moves the count by less.
SIZE_TOLERANCE = 1.05
NEVER = ("LDL", "STL", "spill_bytes", "stack_bytes")  # local memory
EXACT = ("HMMA", "HGMMA", "IMMA", "QGMMA", "LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP", "LDSM", "STSM")


def measured(objects, tool):
    """{"folder/file.cu": {kernel: {arch: figures}}} and the compiler's release."""
    found, releases = {}, set()
    paths = sorted(objects.rglob("*.cu.json"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:  # the disassembler is most of it
        disassembled = list(threads.map(lambda path: sass.kernels_of(path.with_suffix(".o"), tool), paths))
    for report_path, kernels in zip(paths, disassembled):
        report = json.loads(report_path.read_text())
        releases.add(report["nvcc"])
        for kernel in report["kernels"]:
            figures = kernels.get(kernel["name"], {}).get(kernel["arch"])
            if figures is not None:
                figures.update({what: kernel[what] for what in ("spill_bytes", "stack_bytes") if kernel[what]})
        found[report["source"]] = kernels
    return found, releases


def compare(budget, figures):
    """Findings and remarks for one kernel on one architecture."""
    findings, remarks = [], []
    for what in sorted(set(budget) | set(figures)):
        before, now = budget.get(what, 0), figures.get(what, 0)
        if before == now:
            continue
        change = f"{what} {before} -> {now}"
        if what in NEVER:
            worse = now > 0
        elif what in EXACT or what.partition(".")[0] in EXACT:
            worse = True
        elif what == "instructions":
            worse = now > before * SIZE_TOLERANCE
            if not worse and now > before:
                continue
        elif what.endswith(".128"):
            worse = False  # narrower ones are what counts
        else:
            worse = now > before
        (findings if worse else remarks).append(change)
    return findings, remarks


def broken_rules(rules, found):
    """Rules: {"kernels": pattern of folder/file.cu:name, "archs": [...], "at_least": {...}, "at_most": {...}, "why": text}."""
    findings = []
    for rule in rules:
        matched = False
        for source, kernels in found.items():
            for name, by_arch in kernels.items():
                if not fnmatch.fnmatchcase(f"{source}:{name}", rule["kernels"]):
                    continue
                matched = True
                for arch, figures in by_arch.items():
                    if arch not in rule.get("archs", [arch]):
                        continue
                    for what, least in rule.get("at_least", {}).items():
                        if sass.total(figures, what) < least:
                            findings.append(f"{source}: {name} for sm_{arch}: {what} {sass.total(figures, what)}, at least {least}: {rule['why']}")
                    for what, most in rule.get("at_most", {}).items():
                        if sass.total(figures, what) > most:
                            findings.append(f"{source}: {name} for sm_{arch}: {what} {sass.total(figures, what)}, at most {most}: {rule['why']}")
        if found and not matched:
            findings.append(f"no kernel matches the rule for {rule['kernels']}")
    return findings


def check(budgets, found):
    findings, remarks = [], []
    known = budgets["kernels"]
    built = {arch for kernels in found.values() for by_arch in kernels.values() for arch in by_arch}
    for source in sorted(set(known) | set(found)):
        for name in sorted(set(known.get(source, {})) | set(found.get(source, {}))):
            before, now = known.get(source, {}).get(name), found.get(source, {}).get(name)
            for arch in sorted(built & (set(before or {}) | set(now or {}))):  # a build may be for one architecture alone
                place = f"{source}: {name} for sm_{arch}"
                if not before or arch not in before:
                    findings.append(f"{place}: has no budget yet")
                elif not now or arch not in now:
                    findings.append(f"{place}: is gone, its budget is not")
                else:
                    worse, better = compare(before[arch], now[arch])
                    if worse:
                        findings.append(f"{place}: " + ", ".join(worse))
                    elif better:
                        remarks.append(f"{place}: " + ", ".join(better))
    return findings, remarks


def write(budgets, found, release):
    """One line per kernel and architecture, so that a difference reads well."""
    lines = ["{", f' "nvcc": {json.dumps(release)},', ' "rules": [']
    lines.append(",\n".join("  " + json.dumps(rule) for rule in budgets["rules"]))
    lines += [" ],", ' "kernels": {']
    sources = []
    for source in sorted(found):
        kernels = []
        for name in sorted(found[source]):
            archs = [f"    {json.dumps(arch)}: {json.dumps(figures)}" for arch, figures in sorted(found[source][name].items())]
            kernels.append(f"   {json.dumps(name)}: {{\n" + ",\n".join(archs) + "\n   }")
        sources.append(f"  {json.dumps(source)}: {{\n" + ",\n".join(kernels) + "\n  }")
    lines.append(",\n".join(sources))
    lines += [" }", "}"]
    BUDGETS.write_text("\n".join(line for line in lines if line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", type=pathlib.Path)
    parser.add_argument("--tools", default="", help="folder of nvcc, searched for cuobjdump and nvdisasm before the PATH")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()

    os.environ["PATH"] = os.pathsep.join(filter(None, [args.tools, os.environ.get("PATH", "")]))
    missing = [tool for tool in ("cuobjdump", "nvdisasm") if not shutil.which(tool)]
    if missing:
        print(f"budgets: skipped, no {' and '.join(missing)} beside nvcc or on the PATH (.ci/deps-cuda --pinned)")
        sys.exit(SKIPPED)

    budgets = json.loads(BUDGETS.read_text())
    found, releases = measured(args.objects, shutil.which("cuobjdump"))
    if not found and budgets["kernels"]:
        sys.exit(f"budgets: no kernels below {args.objects}")
    if len(releases) > 1:
        sys.exit(f"budgets: objects of several compilers: {', '.join(sorted(releases))}; build again")
    release = releases.pop() if releases else budgets["nvcc"]
    findings = broken_rules(budgets["rules"], found)
    number = sum(len(by_arch) for kernels in found.values() for by_arch in kernels.values())
    if args.write:
        write(budgets, found, release)
        print(f"budgets: wrote {number} kernels of nvcc {release}")
    elif release == budgets["nvcc"]:
        worse, remarks = check(budgets, found)
        findings += worse
        for remark in remarks:
            print(f"better than its budget (--write): {remark}")
    for finding in findings:
        print(finding)
    if findings:
        print(f"budgets: {len(findings)} finding(s). Where a change is meant: tests/cuda/budgets.py {args.objects} --write, and read the difference")
        sys.exit(1)
    if release != budgets["nvcc"]:
        print(f"budgets: skipped, they are of nvcc {budgets['nvcc']}, this build used {release}; the rules hold")
        sys.exit(SKIPPED)
    print(f"budgets: ok, {number} kernels")


if __name__ == "__main__":
    main()
