"""This library beside FlashInfer and torch on the shapes of shapes.py: same pools, same page tables, same queries, measured in turn.

    peers.py LIBRARY OUT.json [--device cuda:0] [--seconds N] [--only D1,P2] [--tiny]

Devices: cuda:N; emulated:LIBRARY, for a rehearsal; cpu. A shape that one side does not serve is
left out by that side's own words. What is in OUT.json already is not measured again.
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
import machine
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


class Checks:
    """Results before and after the timing, against float64. `error` of a side is the larger one."""

    def __init__(self, ours):
        self.ours, self.errors, self.peers = ours, {}, {}
        self.recurrence = reference.Recurrence(ours) if ours.shape.kind == "linear" else None

    def own(self, layer):
        """What the open forward, or the copies, have just given."""
        ours, kind = self.ours, self.ours.shape.kind
        ours.machine.synchronize()
        if kind == "append":
            error = reference.append_error(ours, layer)
        elif kind == "copy":
            error = reference.copy_error(ours)
        elif kind == "linear":
            error = self.recurrence.error(ours.out)
        else:
            error = reference.Expected(ours, layer).error(ours.out)
        self.note("kvcache", error)

    def own_after(self, timer):
        """Once more with other inputs, and outputs that hold nothing."""
        ours, last = self.ours, self.ours.num_layers - 1
        ours.refresh()
        ours.machine.synchronize()
        if isinstance(timer, timing.GraphTimer):
            ours.replay(timer.graphs[0], look=lambda: self.own(last))
        else:
            timer.again()
            self.own(last)

    def add_peer(self, name, out, data_layer):
        """The forward that the side was planned for is open. `data_layer`: see the sides."""
        ours, last = self.ours, data_layer(self.ours.num_layers - 1)
        ours.machine.synchronize()
        self.note(name, reference.Expected(ours, data_layer(0)).error(out()))
        self.peers[name] = out, reference.Expected(ours, last)

    def peer_after(self, name, timer):
        out, expected = self.peers[name]
        out().fill_(float("nan"))
        self.ours.machine.synchronize()
        timer.again()
        self.ours.machine.synchronize()
        self.note(name, expected.error(out()))

    def note(self, name, error):
        known = self.errors.get(name, 0.0)
        self.errors[name] = error if not error <= known else known  # NaN stays


def measure_shape(library, shape, args, device, stream):
    """One entry of the result."""
    ours = Ours(library, shape, device, layers_for(shape, args.tiny), stream)
    entry = {
        "what": shape.what,
        "bytes": shape.key_bytes(),
        "flops": shape.flops(),
        "layers": ours.num_layers,
        "sides": {},
        "skipped": {},
    }
    try:
        try:
            ours.open()
            checks = Checks(ours)
            device.synchronize()  # data is made on another stream than the one it is used on
            if shape.kind != "copy":
                ours.begin()
            ours.launch(0)
            checks.own(0)
        except capi.Refused as error:
            entry["skipped"]["kvcache"] = str(error)
            return entry
        candidates = [
            timing.Candidate("kvcache", ours.launch, ours.num_layers, device.launches, ours)
        ]
        for side in (flashinfer_side, torch_side):
            for name, make in side.candidates(ours):
                try:
                    launch, out, data_layer = make()
                    launch(0)
                    checks.add_peer(name, out, data_layer)
                    candidates.append(
                        timing.Candidate(name, launch, ours.num_layers, device.launches)
                    )
                except Exception as error:  # noqa: BLE001  a peer's refusal is a line of the table
                    entry["skipped"][name] = (
                        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[
                            :200
                        ]
                    )
        eager = shape.kind in shapes.EAGER
        if device.has_streams and not eager:
            ours.abort()  # a captured step begins inside its capture
        timers, not_timed = timing.make(candidates, device, stream, eager)
        entry["skipped"].update(not_timed)
        entry["sides"] = timing.measure(timers, rounds=3 if args.tiny else 5)
        for name, timer in timers.items():
            if name != "kvcache":
                checks.peer_after(name, timer)
        checks.own_after(timers["kvcache"])
        for name, side in entry["sides"].items():
            side["error"] = checks.errors[name]
            if not side["error"] <= TOLERANCE[shape.storage]:
                side["wrong"] = (
                    f"relative error {side['error']:.2e}, at most {TOLERANCE[shape.storage]:.0e}"
                )
        if shape.kind != "copy":
            if ours.forward:
                ours.abort()
            begin = time.perf_counter()
            for _ in range(5):
                ours.step()
            device.synchronize()
            entry["step_us"] = (time.perf_counter() - begin) / 5 * 1e6
    finally:
        device.synchronize()
        ours.close()
    return entry


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="small shapes of every kind: that the code runs, not how fast",
    )
    args = parser.parse_args()

    try:
        device = machine.named(args.device, args.library)
    except machine.Failed as error:
        sys.exit(f"peers: {error}")
    stream = device.stream()
    library = capi.Library(args.library)
    wanted = set(filter(None, args.only.split(",")))
    result = json.loads(args.out.read_text()) if args.out.exists() else {}
    result.update(
        {
            "version": library.version,
            "torch": torch.__version__,
            "flashinfer": flashinfer_side.version(),
        }
    )
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
            entries[shape.id] = measure_shape(library, shape, args, device, stream)
        except Exception as error:  # noqa: BLE001  the other shapes are still wanted
            entries[shape.id] = {
                "what": shape.what,
                "failed": f"{type(error).__name__}: {error}"[:400],
            }
        device.empty_cache()
        temporary = args.out.with_suffix(".new")
        temporary.write_text(json.dumps(result, indent=1))
        os.replace(temporary, args.out)
    bad = [
        name
        for name, entry in entries.items()
        if isinstance(entry, dict)
        and ("failed" in entry or "wrong" in entry.get("sides", {}).get("kvcache", {}))
    ]
    for name in bad:
        print(
            f"peers: {name}: {entries[name].get('failed') or entries[name]['sides']['kvcache']['wrong']}"
        )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
