"""Times of short launches: graph replays between events, one side after the other in turn, medians of rounds."""

import statistics
import time

import torch

LAUNCHES = 20  # in a replay at least: the events around it cost a few microseconds


class Candidate:
    """One side of a comparison. `launch(layer)` enqueues the operation on one of `num_layers` copies of the data."""

    def __init__(self, name, launch, num_layers):
        self.name, self.launch, self.num_layers = name, launch, num_layers
        self.note = ""

    def sweep(self):
        for layer in range(self.num_layers):
            self.launch(layer)


class GraphTimer:
    """Replays of one CUDA graph that goes through all copies at least once. Where capturing fails the same calls are timed as they come."""

    def __init__(self, candidate, stream):
        self.stream = stream
        self.sweeps = max(1, -(-LAUNCHES // candidate.num_layers))
        self.launches = self.sweeps * candidate.num_layers
        with torch.cuda.stream(stream):
            candidate.sweep()  # modules are loaded and workspace is allocated outside the capture
            stream.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(self.sweeps):
                    candidate.sweep()
            self.run = graph.replay
        except Exception as error:  # noqa: BLE001  whatever a side throws while capturing
            candidate.note = f"not captured ({str(error).splitlines()[0]})"
            self.run = lambda: [candidate.sweep() for _ in range(self.sweeps)]

    def seconds(self):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            begin.record()
            self.run()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / self.launches


class ClockTimer:
    """For a device that works while it is called."""

    def __init__(self, candidate, _stream):
        self.candidate = candidate
        candidate.sweep()

    def seconds(self):
        begin = time.perf_counter()
        self.candidate.sweep()
        return (time.perf_counter() - begin) / self.candidate.num_layers


def measure(candidates, device, stream, rounds=5):
    """{name: {"us", "us_min", "us_max", "note"}} per launch."""
    timer = GraphTimer if torch.device(device).type == "cuda" else ClockTimer
    timers = {candidate.name: timer(candidate, stream) for candidate in candidates}
    times = {name: [] for name in timers}
    for name in timers:
        timers[name].seconds()
    for _ in range(rounds):
        for name in timers:
            times[name].append(timers[name].seconds() * 1e6)
    notes = {candidate.name: candidate.note for candidate in candidates}
    return {name: {"us": statistics.median(values), "us_min": min(values), "us_max": max(values), "note": notes[name]}
            for name, values in times.items()}
