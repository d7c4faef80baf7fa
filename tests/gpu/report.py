"""bench/results/<device>.json and a Markdown table of the same: only what was measured, and on what."""

import datetime
import json
import re


def file_name(device):
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def rate(entry, microseconds):
    """What the time means: bytes or operations per second, whichever the shape is about."""
    if (
        entry["flops"] > 184 * entry["bytes"]
    ):  # operations per byte where an H200 turns from memory to arithmetic
        return f"{entry['flops'] / microseconds / 1e6:.0f} TFLOP/s"
    return f"{entry['bytes'] / microseconds / 1e3:.0f} GB/s"


def best_peer(entry):
    """The fastest side that is not this library, right results only; dense ceilings do not count."""
    sides = {
        name: side
        for name, side in entry["sides"].items()
        if name != "kvcache" and not name.endswith("dense") and "wrong" not in side
    }
    return min(sides.items(), key=lambda item: item[1]["us"]) if sides else (None, None)


def spread(side):
    return f"{side['us']:.1f} ({side['us_min']:.1f} to {side['us_max']:.1f})"


def shape_rows(shapes):
    for name, entry in shapes.items():
        if "failed" in entry:
            yield f"| {name} | {entry['what']} | failed: {entry['failed']} | | | | |"
            continue
        ours = entry["sides"].get("kvcache")
        if not ours:
            yield f"| {name} | {entry['what']} | left out: {entry['skipped'].get('kvcache', '')} | | | | |"
            continue
        peer_name, peer = best_peer(entry)
        dense = next(
            (side for name, side in entry["sides"].items() if name.endswith("dense")), None
        )
        marks = " ".join(
            filter(
                None,
                [
                    ours["timed"] if ours["timed"] != "graph" else "",
                    ours.get("wrong") and f"WRONG ({ours['wrong']})",
                    ours["note"],
                ],
            )
        )
        yield (
            f"| {name} | {entry['what']} | {spread(ours)} {marks} | {rate(entry, ours['us'])} | "
            + (f"{spread(peer)}, {peer_name} | {peer['us'] / ours['us']:.2f} |" if peer else " | |")
            + (f" {dense['us']:.1f} |" if dense else " |")
        )


def rehearsal_lines(entries):
    if (entries.get("device") or {}).get("rehearsal"):
        return [
            "A rehearsal on the emulator: the times below are those of a CPU, and mean nothing.",
            "",
        ]
    return []


def table(gpu, entries):
    lines = [
        f"# {gpu['name']}",
        "",
        *rehearsal_lines(entries),
        f"{gpu['multiprocessors']} multiprocessors, {gpu['memory_bytes'] >> 30} GiB, L2 {gpu['l2_bytes'] >> 20} MiB, "
        f"driver {gpu['driver'] or 'unknown'} (CUDA {gpu['driver_cuda']}).",
        "",
        "| stage | outcome | |",
        "|---|---|---|",
    ]
    for name, entry in entries.items():
        detail = entry["why"]
        if not detail and isinstance(entry.get("result"), dict) and "tests" in entry["result"]:
            detail = f"{entry['result']['tests']} tests"
        lines.append(f"| {name} | {entry['status']} | {detail.replace('|', '/')} |")
    measured = (entries.get("peers") or {}).get("result")
    if measured:
        lines += [
            "",
            f"kvcache {measured['version']}, torch {measured['torch']}, FlashInfer {measured['flashinfer'] or 'not here'}. "
            "Microseconds per launch, median of rounds (least to most); cold L2, random page ids, sides in turn. Graph replays, the difference of two "
            "graphs; where it says eager, calls one by one behind a kernel that gives the host a lead. "
            "Bytes are those of the keys and values, once.",
            "",
            "| id | what | kvcache | | fastest peer | peer / kvcache | torch, dense |",
            "|---|---|---|---|---|---|---|",
            *shape_rows(measured["shapes"]),
        ]
    return "\n".join(lines) + "\n"


def write(run, entries):
    """Writes both files and returns the table."""
    run.results.mkdir(parents=True, exist_ok=True)
    name = file_name(run.gpu["name"])
    text = table(run.gpu, entries)
    record = {
        "device": run.gpu,
        "date": datetime.date.today().isoformat(),
        "library": run.key(),
        "stages": entries,
    }
    (run.results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (run.results / f"{name}.md").write_text(text)
    return text
