"""A step captured in a CUDA graph gives what the same calls give one by one, also with other inputs at the same addresses and when it is replayed
again. Usage: graphs.py LIBRARY [DEVICE]. Status 77: cannot be tested here."""

import sys

import torch

import capi
import reference
from ours import Ours
from shapes import Shape

SHAPES = [
    Shape("decode", "decode", "decode", 5, 1, 300),
    Shape("prefill", "prefill", "prefill", 2, 40, 300),
    Shape("tree", "tree", "tree", 3, 8, 200),
    Shape("cascade", "decode, shared prefix", "cascade", 6, 1, 1100, shared=1024),
    Shape("latent", "latents", "latent", 3, 1, 300, 16, 1, 576, page=64),
]
TOLERANCE = 5e-3


def check(library, shape, device):
    stream = torch.cuda.Stream(device)
    ours = Ours(library, shape, device, 2, stream.cuda_stream)
    try:
        ours.open()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            ours.launch(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            ours.launch(1)
            ours.launch(0)
        for replay in range(3):
            ours.q.copy_(torch.randn(ours.q.shape, device=device, generator=ours.generator))
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.current_stream(device))
                ours.out.fill_(float("nan"))
                ours.launch(0)
                stream.synchronize()
                by_call = ours.out.clone()
                ours.out.fill_(float("nan"))
                graph.replay()
            stream.synchronize()
            if not torch.equal(ours.out, by_call):
                yield f"{shape.id}: replay {replay} differs from the calls by {reference.relative_error(ours.out, by_call):.1e}"
            error = reference.check(ours, ours.out)
            if not error <= TOLERANCE:
                yield f"{shape.id}: replay {replay} is off by {error:.1e}"
    finally:
        torch.cuda.synchronize()
        ours.close()


def main():
    library = capi.Library(sys.argv[1])
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
    if not torch.cuda.is_available():
        print("torch sees no GPU")
        sys.exit(77)
    if not library.device_caps(capi.CUDA, 0)["backend_present"]:
        print("the library has no back end for this GPU")
        sys.exit(77)
    findings = []
    for shape in SHAPES:
        try:
            findings += check(library, shape, device)
        except (capi.Refused, RuntimeError) as error:
            findings.append(f"{shape.id}: {error}")
    for finding in findings:
        print(finding)
    print(f"graphs: {len(findings)} finding(s)" if findings else f"graphs: ok, {len(SHAPES)} kinds of steps")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
