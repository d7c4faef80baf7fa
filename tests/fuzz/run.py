"""Runs every fuzz target for some seconds, two at a time, and prints what each did.

Usage: fuzz/run.py <folder of the programs> <seconds for each> [--jobs N] [--only name ...]
Corpora live in the folder of the programs, findings beside them. 0 seconds: until stopped. Exit status 1: a target found something.
"""

import argparse
import concurrent.futures
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = {"config_json_fuzz": HERE.parent / "capi" / "hf_configs", "traces_fuzz": HERE.parent / "traces"}
# Longer inputs make no other calls, only more of them.
LONGEST = {"config_json_fuzz": 16384, "calls_fuzz": 1024, "prefix_fuzz": 1024}
MEMORY_MIB = 3072
NUM_SEEDS = 64


def sow(corpus):
    """First inputs: what was found before, and the same numbers everywhere. Small ones take the usual branches, large ones the rare ones."""
    for found in (HERE / "found" / corpus.name).glob("*.hex"):
        (corpus / found.stem).write_bytes(bytes.fromhex(found.read_text()))
    if (corpus / "seed0").exists():
        return
    numbers = random.Random(corpus.name)
    for index in range(NUM_SEEDS):
        most = (256, 24)[index % 2]
        (corpus / f"seed{index}").write_bytes(bytes(numbers.randrange(most) for _ in range(numbers.randrange(16, 400))))


def run(program, seconds, kept):
    name = program.name
    corpus = kept / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    folders = [corpus] + ([SEEDS[name]] if name in SEEDS else [])
    sow(corpus)
    findings = kept / "findings"
    findings.mkdir(exist_ok=True)
    command = [program, f"-max_total_time={seconds}", f"-max_len={LONGEST.get(name, 4096)}", f"-rss_limit_mb={MEMORY_MIB}", "-timeout=30",
               "-print_final_stats=1", "-len_control=0", f"-artifact_prefix={findings}/{name}-", *folders]
    begin = time.monotonic()
    # What was found before is run to its end, however short the time is.
    found = sorted(path for path in corpus.iterdir() if (HERE / "found" / name / f"{path.name}.hex").exists())
    for arguments in ([command[0], f"-rss_limit_mb={MEMORY_MIB}", "-timeout=30", *found] if found else None, command):
        if arguments is None:
            continue
        done = subprocess.run([str(part) for part in arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            break
    (kept / f"{name}.log").write_text(output)
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
    lines = re.findall(r"cov: (\d+)", output)
    return {"name": name, "status": done.returncode, "seconds": time.monotonic() - begin, "inputs": int(executed.group(1)) if executed else 0,
            "edges": int(lines[-1]) if lines else 0, "output": output}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    names = sorted(path.stem for path in HERE.glob("*_fuzz.cc"))
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    programs = [options.programs / name for name in names if not options.only or name in options.only]
    for program in programs:
        if not shutil.which(str(program)):
            parser.error(f"{program} is not built")
    kept = options.programs / "fuzz"
    kept.mkdir(exist_ok=True)
    failed = 0
    # All at once where they run until they are stopped.
    jobs = options.jobs if options.seconds else len(programs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda program: run(program, options.seconds, kept), programs):
            verdict = "ok" if result["status"] == 0 else "FOUND SOMETHING"
            print(f"{result['name']:<20} {result['inputs']:>10,} inputs {result['seconds']:>7.1f} s {result['edges']:>7,} edges   {verdict}", flush=True)
            if result["status"]:
                failed += 1
                print("\n".join(result["output"].splitlines()[-60:]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
