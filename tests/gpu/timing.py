"""Times of short launches: sides in turn, medians of rounds.

Each side has two graphs, one with twice the launches of the other. Their difference is the time of
the launches. The rest is the graph's own: its launch, and the kernels that begin a step. Where a
graph cannot hold the calls, all sides are timed eagerly, behind a kernel that gives the host a lead.
"""

import statistics
import time

import machine


class Candidate:
    """One side of a comparison.

    `launch(layer)` enqueues the operation on one of `num_layers` copies of the data. `ours` is set
    for this library, whose graphs hold whole steps.
    """

    def __init__(self, name, launch, num_layers, launches, ours=None):
        self.name, self.launch, self.num_layers, self.ours = name, launch, num_layers, ours
        self.sweeps = max(1, -(-launches // num_layers))
        self.notes = []

    def sweep(self, sweeps=1):
        for _ in range(sweeps):
            for layer in range(self.num_layers):
                self.launch(layer)


class GraphTimer:
    def __init__(self, candidate, device, stream):
        self.candidate, self.device, self.stream = candidate, device, stream
        self.graphs = [self.capture(candidate.sweeps), self.capture(2 * candidate.sweeps)]
        kernels, twice = (graph.kernels for graph in self.graphs)
        if twice <= kernels:
            raise machine.Failed(
                f"a graph of twice the launches has {twice} kernels, not more than {kernels}"
            )

    def capture(self, sweeps):
        if self.candidate.ours:
            return self.candidate.ours.capture(sweeps)
        return self.device.capture(self.stream, lambda: self.candidate.sweep(sweeps))

    def graph_seconds(self, graph):
        taken = []

        def launch(enqueue):
            taken.append(self.device.seconds(self.stream, enqueue)[0])

        if self.candidate.ours:
            self.candidate.ours.replay(graph, launch)
        else:
            launch(graph.launch)
        return taken[0]

    def round(self):
        """{what: microseconds}: of a launch, and of what a graph takes beside its launches."""
        once, twice = (self.graph_seconds(graph) for graph in self.graphs)
        return {
            "us": (twice - once) / (self.candidate.sweeps * self.candidate.num_layers) * 1e6,
            "graph_us": (2 * once - twice) * 1e6,
        }

    def again(self):
        """The operation once more, so that its results can be looked at."""
        if not self.candidate.ours:
            self.graphs[-1].launch()

    @property
    def facts(self):
        return {"timed": "graph", "kernels": self.graphs[0].kernels}


class EagerTimer:
    def __init__(self, candidate, device, stream):
        self.candidate, self.device, self.stream = candidate, device, stream
        candidate.sweep()
        device.synchronize()
        begin = time.perf_counter()
        candidate.sweep(candidate.sweeps)
        self.host_seconds = time.perf_counter() - begin
        device.synchronize()

    def round(self):
        seconds, host_was_late = self.device.seconds(
            self.stream, lambda: self.candidate.sweep(self.candidate.sweeps), self.host_seconds
        )
        if host_was_late and "the device waited for the host" not in self.candidate.notes:
            self.candidate.notes.append("the device waited for the host")
        return {"us": seconds / (self.candidate.sweeps * self.candidate.num_layers) * 1e6}

    def again(self):
        self.candidate.sweep()

    facts = {"timed": "eager"}


class ClockTimer:
    """For a device that works while it is called."""

    def __init__(self, candidate, _device, _stream):
        self.candidate = candidate
        candidate.sweep()

    def round(self):
        begin = time.perf_counter()
        self.candidate.sweep()
        return {"us": (time.perf_counter() - begin) / self.candidate.num_layers * 1e6}

    def again(self):
        self.candidate.sweep()

    facts = {"timed": "clock"}


def make(candidates, device, stream, eager):
    """({name: timer}, {name: why there is none}): all sides by graphs or all of them eagerly."""
    kind = ClockTimer if not device.has_streams else EagerTimer if eager else GraphTimer
    timers, skipped = {}, {}
    for candidate in candidates:
        try:
            timers[candidate.name] = kind(candidate, device, stream)
        except (
            Exception
        ) as error:  # noqa: BLE001  whatever a side throws while it is captured; ours counts as a failure
            if candidate.ours:
                raise
            skipped[candidate.name] = (
                f"not captured ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"[
                    :200
                ]
            )
    return timers, skipped


def measure(timers, rounds):
    """{name: {"us", "us_min", "us_max", ...}} per launch."""
    for timer in timers.values():
        timer.round()
    seen = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            seen[name].append(timer.round())
    result = {}
    for name, timer in timers.items():
        values = [each["us"] for each in seen[name]]
        result[name] = {
            "us": statistics.median(values),
            "us_min": min(values),
            "us_max": max(values),
            **timer.facts,
            "note": ", ".join(timer.candidate.notes),
        }
        if "graph_us" in seen[name][0]:
            result[name]["graph_us"] = statistics.median(each["graph_us"] for each in seen[name])
    return result
