"""The device that is measured: streams, captures and their graphs, clocks.

cuda:N               a GPU, through torch and the driver
emulated:LIBRARY     the emulator of tests/cudasim: equal results, times that mean nothing
cpu                  neither streams nor graphs
"""

import ctypes
import os
import pathlib
import time

import torch

import capi


class Failed(Exception):
    """What a machine says of a capture or a graph that cannot be used."""


def named(name, library):
    """`library`: path of libkvcache.so, beside which its back end lies."""
    if name == "cpu":
        return Cpu()
    if name.startswith("emulated:"):
        return Emulated(
            name.removeprefix("emulated:"),
            pathlib.Path(library).resolve().parent / "libkvcache_cuda.so",
        )
    return Gpu(name)


class Cpu:
    """Works while it is called."""

    has_streams = False
    launches = 1  # in what is timed, at least
    dl_device = (capi.CPU, 0)
    torch_device = torch.device("cpu")

    def stream(self):
        return 0

    def synchronize(self):
        pass

    def empty_cache(self):
        pass

    def own(self, tensor):
        """The same in memory that the device knows as its own."""
        return tensor


class Emulated(Cpu):
    """Tensors are torch's on the CPU; pools lie in memory of the emulated device."""

    has_streams = True
    launches = 4
    dl_device = (capi.CUDA, 0)
    GLOBAL_MODE = 0

    def __init__(self, library, backend):
        # torch brings the CUDA runtime itself. The back end must find the emulator's names first.
        self.backend = ctypes.CDLL(
            str(backend), mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        )
        self.library = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)

    def call(self, name, *args):
        status = getattr(self.library, name)(*args)
        if status:
            raise Failed(f"{name}: {status}")

    def stream(self):
        handle = ctypes.c_void_p()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(handle), ctypes.c_uint(1))
        return handle.value

    def synchronize(self):
        self.call("cudaDeviceSynchronize")

    def own(self, tensor):
        memory, size = ctypes.c_void_p(), tensor.numel() * tensor.element_size()
        self.call("cudaMalloc", ctypes.byref(memory), ctypes.c_size_t(size))
        owned = (
            torch.frombuffer((ctypes.c_byte * size).from_address(memory.value), dtype=torch.uint8)
            .view(tensor.dtype)
            .view(tensor.shape)
        )
        return owned.copy_(tensor)

    def capture(self, stream, record):
        """What record() enqueues, as a graph."""
        self.call("cudaStreamBeginCapture", ctypes.c_void_p(stream), self.GLOBAL_MODE)
        graph = ctypes.c_void_p()
        try:
            record()
        except BaseException:
            self.library.cudaStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
            raise
        self.call("cudaStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        nodes, executable = ctypes.c_size_t(), ctypes.c_void_p()
        self.call("cudaGraphGetNodes", graph, None, ctypes.byref(nodes))
        self.call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return Graph(
            nodes.value, lambda: self.call("cudaGraphLaunch", executable, ctypes.c_void_p(stream))
        )

    def seconds(self, stream, enqueue, host_seconds=0):
        """(of what enqueue() gives the device, whether the device had to wait for the host)."""
        begin = time.perf_counter()
        enqueue()
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))
        return time.perf_counter() - begin, False


class Gpu:
    """Through torch, whose allocator has to know of captures. The driver counts graph nodes."""

    has_streams = True
    launches = 20  # the events around them cost a few microseconds
    KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
    CYCLES_PER_SECOND = 2e9  # of a device, about: for how long it is kept busy

    def __init__(self, name):
        if not torch.cuda.is_available():
            raise Failed("torch sees no GPU")
        self.torch_device = torch.device(name)
        self.dl_device = (capi.CUDA, self.torch_device.index or 0)
        self.streams = {}
        self.driver = ctypes.CDLL("libcuda.so.1")

    def stream(self):
        made = torch.cuda.Stream(self.torch_device)
        self.streams[made.cuda_stream] = made
        return made.cuda_stream

    def synchronize(self):
        torch.cuda.synchronize(self.torch_device)

    def empty_cache(self):
        torch.cuda.empty_cache()

    def own(self, tensor):
        return tensor

    def capture(self, stream, record):
        graph, kernels = torch.cuda.CUDAGraph(), 0
        with torch.cuda.graph(graph, stream=self.streams[stream]):
            record()
            kernels = self.kernels_captured(stream)
        return Graph(kernels, lambda: self.on(stream, graph.replay))

    def kernels_captured(self, stream):
        """Kernel nodes of the graph that the stream is captured into."""
        status, number, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
        before, edges, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        given = [
            ctypes.c_void_p(stream),
            ctypes.byref(status),
            ctypes.byref(number),
            ctypes.byref(graph),
            ctypes.byref(before),
        ]
        # Both stay in drivers for ever; which of them a toolkit's headers mean differs.
        if hasattr(self.driver, "cuStreamGetCaptureInfo_v2"):
            self.drive("cuStreamGetCaptureInfo_v2", *given, ctypes.byref(count))
        else:
            self.drive(
                "cuStreamGetCaptureInfo_v3", *given, ctypes.byref(edges), ctypes.byref(count)
            )
        self.drive("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * max(1, count.value))()
        self.drive("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        kind, kernels = ctypes.c_int(), 0
        for node in nodes[: count.value]:
            self.drive("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            kernels += kind.value == self.KERNEL_NODE
        return kernels

    def drive(self, name, *args):
        status = getattr(self.driver, name)(*args)
        if status:
            raise Failed(f"{name}: {status}")

    def on(self, stream, call):
        with torch.cuda.stream(self.streams[stream]):
            call()

    def seconds(self, stream, enqueue, host_seconds=1e-4):
        """A kernel that only waits, twice as long as the host takes, goes first.

        The host is ahead of the device then, so that the device is what is measured.
        """
        with torch.cuda.stream(self.streams[stream]):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(2 * min(host_seconds, 0.2) * self.CYCLES_PER_SECOND))
            begin.record()
            enqueue()
            host_was_late = begin.query()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3, host_was_late


class Graph:
    def __init__(self, kernels, launch):
        if kernels == 0:
            raise Failed("the capture holds no kernel")
        self.kernels, self.launch = kernels, launch
