"""Captured steps and their replays against float64.

    graphs.py LIBRARY [DEVICE] [--tiny]

Steps are captured from begin to end and replayed with other inputs at the same addresses, beside
eager steps. Status 77: they cannot be tested here.
"""

import sys

import capi
import machine
import peers
from ours import Ours
from shapes import Shape

SHAPES = [
    Shape("decode", "decode", "decode", 5, 1, 300),
    Shape("window", "window and sinks", "decode", 4, 1, 300, window=64, sinks=True),
    Shape("prefill", "prefill", "prefill", 2, 40, 300),
    Shape("prompt", "a whole prompt", "prefill", 1, 200, 200),
    Shape("shared", "shared prefix, read apart", "cascade", 6, 1, 1100, shared=1024),
    Shape("latent", "latents", "latent", 3, 1, 300, 16, 1, 576, page=64),
    Shape("append", "append with rotation", "append", 3, 20, 50),
    Shape("state", "gated delta rule", "linear", 6, 1, 1, 4, 4, 64, storage="float32"),
]
TINY = [
    Shape("decode", "decode", "decode", 3, 1, 40, 4, 2, 32, storage="float32"),
    Shape(
        "window",
        "window and sinks",
        "decode",
        2,
        1,
        60,
        4,
        2,
        32,
        window=20,
        sinks=True,
        storage="float32",
    ),
    Shape("prefill", "prefill", "prefill", 2, 20, 50, 4, 2, 32, storage="float32"),
    Shape(
        "shared",
        "shared prefix, read apart",
        "cascade",
        3,
        1,
        40,
        4,
        2,
        32,
        shared=32,
        storage="float32",
    ),
    Shape("latent", "latents", "latent", 2, 1, 40, 4, 1, 128, storage="float32"),
    Shape("append", "append with rotation", "append", 2, 5, 20, 4, 2, 32, storage="float32"),
    Shape("state", "gated delta rule", "linear", 2, 1, 1, 4, 4, 32, storage="float32"),
]
TREE = Shape("tree", "tree", "tree", 2, 8, 70, 4, 2, 32)
LAYERS = 2
REPLAYS = 4


def check(library, shape, device, stream):
    """What is wrong, as lines of text."""
    ours = Ours(library, shape, device, LAYERS, stream)
    try:
        ours.open()
        device.synchronize()
        checks = peers.Checks(ours)

        def look(what):
            checks.errors.clear()
            for layer in (
                range(LAYERS) if shape.kind == "append" else (LAYERS - 1,)
            ):  # the last one is what out holds
                checks.own(layer)
            error = checks.errors["kvcache"]
            if not error <= peers.TOLERANCE[shape.storage]:
                yield f"{shape.id}: {what} is off by {error:.1e}"

        ours.begin()
        for layer in range(LAYERS):
            ours.launch(layer)
        yield from look("an eager step")
        ours.abort()
        ours.refresh()
        graph = ours.capture(1)
        found = []
        for replay in range(REPLAYS):
            ours.refresh()
            device.synchronize()
            ours.replay(
                graph,
                look=lambda: found.extend(look(f"replay {replay} of {graph.kernels} kernels")),
            )
            yield from found
            found.clear()
            ours.refresh()
            device.synchronize()
            ours.begin()
            for layer in range(LAYERS):
                ours.launch(layer)
            yield from look(f"the eager step behind replay {replay}")
            ours.abort()
    finally:
        device.synchronize()
        ours.close()


def check_refused(library, device, stream):
    """Trees are no part of graphs, and a step begun outside of a capture is none of it."""
    ours = Ours(library, TREE, device, 1, stream)
    try:
        ours.open()
        device.synchronize()
        try:
            ours.capture(1)
            yield "a tree was captured"
        except capi.Refused as error:
            if "KVC_E_UNSUPPORTED" not in str(error):
                yield f"a captured tree: {error}"
        ours.forward = None
    finally:
        device.synchronize()
        ours.close()


def main():
    tiny = "--tiny" in sys.argv
    given = [argument for argument in sys.argv[1:] if argument != "--tiny"]
    library = capi.Library(given[0])
    try:
        device = machine.named(given[1] if len(given) > 1 else "cuda:0", given[0])
    except machine.Failed as error:
        print(error)
        sys.exit(77)
    if not library.device_caps(*device.dl_device)["backend_present"]:
        print("the library has no back end for this GPU")
        sys.exit(77)
    stream, findings, shapes = device.stream(), [], TINY if tiny else SHAPES
    for shape in shapes:
        try:
            findings += check(library, shape, device, stream)
        except (capi.Refused, machine.Failed, RuntimeError) as error:
            findings.append(f"{shape.id}: {error}")
    findings += check_refused(library, device, stream)
    for finding in findings:
        print(finding)
    print(
        f"graphs: {len(findings)} finding(s)"
        if findings
        else f"graphs: ok, {len(shapes)} kinds of steps, {REPLAYS} replays each"
    )
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
