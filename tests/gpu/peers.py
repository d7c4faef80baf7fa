"""This library beside FlashInfer and torch on the shapes of shapes.py: same pools, same page tables, same queries, measured in turn.

    peers.py LIBRARY OUT.json [--device cuda:0] [--seconds N] [--only D1,P2] [--tiny]

A shape that one side does not serve is left out by that side's own words. What is in OUT.json already is not measured again.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch

import capi
import flashinfer_side
import reference
import shapes
import timing
import torch_side
from ours import Ours

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-3, "float8_e4m3fn": 5e-2}  # relative norms
COLD_BYTES = 256 << 20  # a sweep reads at least this much, several times any L2 cache
MOST_LAYERS = 64
MOST_BYTES = 32 << 30


def layers_for(shape, tiny):
    if tiny:
        return 2 if shape.kind != "copy" else 1
    if shape.kind == "copy":
        return 1
    each = max(1, shape.key_bytes())
    return max(1, min(MOST_LAYERS, MOST_BYTES // each, max(2, -(-2 * COLD_BYTES // each))))


def measure_shape(library, shape, args, stream):
    """One entry of the result."""
    ours = Ours(library, shape, args.device, layers_for(shape, args.tiny), stream.cuda_stream if stream else 0)
    entry = {"what": shape.what, "bytes": shape.key_bytes(), "flops": shape.flops(), "layers": ours.num_layers, "sides": {}, "skipped": {}}
    candidates, errors = [], {}
    try:
        try:
            ours.open()
            synchronize(args.device)  # data is made on another stream than the one it is used on
            ours.launch(0)
            synchronize(args.device)
            if shape.kind in ("decode", "tree", "prefill", "cascade", "latent"):
                errors["kvcache"] = reference.check(ours, ours.out)
            candidates.append(timing.Candidate("kvcache", ours.launch, ours.num_layers))
        except capi.Refused as error:
            entry["skipped"]["kvcache"] = str(error)
            return entry
        for side in (flashinfer_side, torch_side):
            for name, make in side.candidates(ours):
                try:
                    launch, out = make()
                    launch(0)
                    synchronize(args.device)
                    if out is not None:
                        errors[name] = reference.check(ours, out())
                    candidates.append(timing.Candidate(name, launch, ours.num_layers))
                except Exception as error:  # noqa: BLE001  a peer's refusal is a line of the table
                    entry["skipped"][name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        entry["sides"] = timing.measure(candidates, args.device, stream, rounds=3 if args.tiny else 5)
        for name, error in errors.items():
            entry["sides"][name]["error"] = error
            if not error <= TOLERANCE[shape.storage]:
                entry["sides"][name]["wrong"] = f"relative error {error:.2e}, at most {TOLERANCE[shape.storage]:.0e}"
        if shape.kind != "copy":
            begin = time.perf_counter()
            for _ in range(5):
                ours.step()
            synchronize(args.device)
            entry["step_us"] = (time.perf_counter() - begin) / 5 * 1e6
    finally:
        ours.close()
    return entry


def synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--tiny", action="store_true", help="small shapes of every kind: that the code runs, not how fast")
    args = parser.parse_args()

    on_gpu = torch.device(args.device).type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("peers: torch sees no GPU")
    stream = torch.cuda.Stream(args.device) if on_gpu else None
    library = capi.Library(args.library)
    wanted = set(filter(None, args.only.split(",")))
    result = json.loads(args.out.read_text()) if args.out.exists() else {}
    result.update({"version": library.version, "torch": torch.__version__, "flashinfer": flashinfer_side.version()})
    entries = result.setdefault("shapes", {})
    result["left_out"] = []
    begin = time.monotonic()
    for shape in shapes.TINY if args.tiny else shapes.SHAPES:
        if wanted and shape.id not in wanted or shape.id in entries:
            continue
        if time.monotonic() - begin > args.seconds:
            result.setdefault("left_out", []).append(shape.id)
            continue
        print(f"peers: {shape.id} {shape.what}", flush=True)
        try:
            entries[shape.id] = measure_shape(library, shape, args, stream)
        except Exception as error:  # noqa: BLE001  the other shapes are still wanted
            entries[shape.id] = {"what": shape.what, "failed": f"{type(error).__name__}: {error}"[:400]}
        if on_gpu:
            torch.cuda.empty_cache()
        temporary = args.out.with_suffix(".new")
        temporary.write_text(json.dumps(result, indent=1))
        os.replace(temporary, args.out)
    bad = [name for name, entry in entries.items() if isinstance(entry, dict)
           and ("failed" in entry or "wrong" in entry.get("sides", {}).get("kvcache", {}))]
    for name in bad:
        print(f"peers: {name}: {entries[name].get('failed') or entries[name]['sides']['kvcache']['wrong']}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
