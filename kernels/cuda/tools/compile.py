"""Compiles one .cu file and reads what ptxas says of every kernel: a spill, local memory, or wgmma made serial fails the build.

ptxas prints the last of these as information ("Potential Performance Loss"), which no warning flag turns into an error, and an exception
must be possible for the others; so the judgement is here. Silent when all is well. The figures go into a JSON file beside the object.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for 'sm_(\w+)'")
PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
STACK = re.compile(r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
LOSS = re.compile(r"Potential Performance Loss", re.IGNORECASE)
INFORMATION = re.compile(r"ptxas info\s*:|ptxas \S+, line \d+; info\s*:")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--launcher", default="", help="put before nvcc, for example ccache")
    parser.add_argument("--release", default="", help="of nvcc, for the report")
    parser.add_argument("--archs", required=True, help="for example 80,80-virtual,90a")
    parser.add_argument("--root", required=True, type=pathlib.Path, help="of the tree: the folder nvcc runs in")
    parser.add_argument("--source", required=True, type=pathlib.Path, help="relative to the root, so that no object names a machine's path")
    parser.add_argument("--object", required=True, type=pathlib.Path)
    parser.add_argument("--depfile", required=True, type=pathlib.Path)
    parser.add_argument("--report", required=True, type=pathlib.Path)
    parser.add_argument("--exceptions", type=pathlib.Path, help="JSON, see kernels/cuda/README.md")
    parser.add_argument("flags", nargs="*", help="for nvcc, after --")
    return parser.parse_args()


def gencode(archs):
    """Only this long form works for sm_90a: -arch=sm_90a also runs a pass for compute_90, which has no wgmma."""
    flags = []
    for arch in archs.split(","):
        number, _, virtual = arch.partition("-")
        code = f"compute_{number}" if virtual else f"sm_{number}"
        flags += ["-gencode", f"arch=compute_{number},code={code}"]
    return flags


def demangled(names):
    """Plain names without parameter lists and anonymous namespaces; mangled ones where there is no c++filt."""
    if not names:
        return {}
    try:
        output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}
    return {name: plain(text) for name, text in zip(names, output.split("\n"))}


def plain(signature):
    """`void kvc::cuda::(anonymous namespace)::f<3>(int)` is f<3>."""
    text = signature.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        # A cast inside template arguments, f<(DType)1>, is no parameter list.
        if letter == "(" and depth == 0:
            text = text[:at]
            break
    return text.replace("kvc::cuda::", "").replace("kvc::kernels::", "")


def read_ptxas(lines):
    """Kernels as ptxas lists them: name, arch and figures; functions that were not inlined count as kernels of their own."""
    kernels, losses, rest = [], [], []
    arch, current = None, None
    for line in lines:
        if LOSS.search(line):
            losses.append(line.strip())
        elif match := ENTRY.match(line):
            arch = match.group(2)
        elif match := PROPERTIES.match(line):
            current = {"name": match.group(1), "arch": arch, "registers": 0, "shared_bytes": 0}
            kernels.append(current)
        elif (match := STACK.match(line)) and current:
            current["stack_bytes"] = int(match.group(1))
            current["spill_bytes"] = int(match.group(2)) + int(match.group(3))
        elif (match := USED.match(line)) and current:
            current["registers"] = int(match.group(1))
            shared = SHARED.search(line)
            current["shared_bytes"] = int(shared.group(1)) if shared else 0
        elif line.strip() and not INFORMATION.match(line):
            rest.append(line)
    return kernels, losses, rest


def judge(kernels, losses, exceptions):
    """What is wrong, as lines of text. An exception that nothing needs any more is wrong as well."""
    findings = list(losses)
    used = set()
    for kernel in kernels:
        limits = {"stack_bytes": 0, "spill_bytes": 0}
        for index, exception in enumerate(exceptions):
            if exception["kernel"] == kernel["name"] and kernel["arch"] in exception["archs"]:
                limits.update((what, exception[what]) for what in limits if what in exception)
                if kernel["stack_bytes"] or kernel["spill_bytes"]:
                    used.add(index)
        for what, limit in limits.items():
            if kernel[what] > limit:
                findings.append(f"{kernel['name']} for sm_{kernel['arch']}: {what} {kernel[what]}, at most {limit}"
                                f" ({kernel['registers']} registers)")
    built = {kernel["arch"] for kernel in kernels}
    for index, exception in enumerate(exceptions):
        if index not in used and built.intersection(exception["archs"]):
            findings.append(f"the exception for {exception['kernel']} is no longer needed")
    return findings


def exceptions_for(args):
    if not args.exceptions or not args.exceptions.exists():
        return []
    listed = json.loads(args.exceptions.read_text())
    for exception in listed:
        if not exception.get("reason"):
            sys.exit(f"{args.exceptions}: {exception.get('kernel')}: an exception has a reason")
    # A folder may have several files: an exception names the one that it is for.
    return [exception for exception in listed if exception.get("file", "launch.cu") == args.source.name]


def make_absolute(depfile, folder):
    """nvcc writes paths relative to the folder that it ran in; the build tool runs elsewhere."""
    text = depfile.read_text()
    words = re.split(r"(\\\n|(?<!\\)[ \n]+)", text)
    depfile.write_text("".join(
        word if not word.strip() or word.startswith(("/", "\\")) or word.endswith(":") else str(folder / word) for word in words))


def main():
    args = arguments()
    for old in (args.object, args.report):
        old.unlink(missing_ok=True)
    args.object.parent.mkdir(parents=True, exist_ok=True)
    command = [*args.launcher.split(), args.nvcc, *args.flags, *gencode(args.archs), "-Xptxas=-v", "-MD", "-MF", str(args.depfile), "-MT",
               str(args.object), "-c", str(args.source), "-o", str(args.object)]
    begin = time.monotonic()
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                            cwd=args.root)
    seconds = time.monotonic() - begin
    kernels, losses, rest = read_ptxas(result.stdout.split("\n"))
    names = demangled(sorted({kernel["name"] for kernel in kernels}))
    for kernel in kernels:
        kernel["name"] = names[kernel["name"]]
    if rest:
        print("\n".join(rest))
    if result.returncode:
        print("failed: " + " ".join(command))
        sys.exit(result.returncode if result.returncode > 0 else 1)
    findings = judge(kernels, losses, exceptions_for(args))
    if findings:
        args.object.unlink(missing_ok=True)
        for finding in findings:
            print(f"{args.source}: {finding}")
        sys.exit(1)
    make_absolute(args.depfile, args.root)
    report = {"source": args.source.as_posix().removeprefix("kernels/cuda/"), "nvcc": args.release, "seconds": round(seconds, 2),
              "kernels": kernels}
    args.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
