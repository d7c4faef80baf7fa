"""The C interface through ctypes, for the measurements: structs by the stored layout of the ABI, tensors over memory of torch."""

import ctypes
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYOUT = json.loads((ROOT / "tests" / "abi" / "layout.json").read_text())
CPU, CUDA = 1, 2  # DLDeviceType
DTYPES = {
    "int8": (0, 8),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "float16": (2, 16),
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
}


class Refused(Exception):
    """The library's own status and message."""


def constant(name):
    return LAYOUT["constants"][name]


def dtype(name):
    """DLDataType as bytes."""
    code, bits = DTYPES[name]
    return struct.pack("<BBH", code, bits, 1)


def device(kind, index):
    return struct.pack("<ii", kind, index)


class Struct:
    """One struct of kvcache.h, all zero but what is given. A number becomes an integer or, where it is a float, a float of the field's size;
    bytes are taken as they are; a Struct, a list of Structs or a ctypes array becomes its address and is kept alive.
    """

    def __init__(self, name, **fields):
        self.layout = LAYOUT["structs"][name]
        self.bytes = ctypes.create_string_buffer(self.layout["size"])
        self.kept = []
        if "struct_size" in self.layout["fields"]:
            fields = {"struct_size": self.layout["size"], **fields}
        for field, value in fields.items():
            self[field] = value

    def __setitem__(self, field, value):
        at, size = self.layout["fields"][field]
        if isinstance(value, bytes):
            raw = value
        elif isinstance(value, float):
            raw = struct.pack("<f" if size == 4 else "<d", value)
        elif isinstance(value, int):
            raw = value.to_bytes(size, "little", signed=value < 0)
        else:
            raw = address(value, self.kept).to_bytes(8, "little")
        if len(raw) > size:
            raise ValueError(f"{field}: {len(raw)} bytes do not fit {size}")
        self.bytes[at : at + len(raw)] = raw

    def __getitem__(self, field):
        at, size = self.layout["fields"][field]
        return int.from_bytes(self.bytes[at : at + size], "little", signed=size <= 8)

    def text(self, field):
        at, size = self.layout["fields"][field]
        return self.bytes[at : at + size].split(b"\0")[0].decode()

    def pointer(self):
        return ctypes.addressof(self.bytes)


def address(value, kept):
    """Of a struct, of an array of structs laid end to end, or of a ctypes array."""
    if value is None:
        return 0
    kept.append(value)
    if isinstance(value, Struct):
        return value.pointer()
    if isinstance(value, list):
        joined = ctypes.create_string_buffer(b"".join(bytes(item.bytes.raw) for item in value))
        kept.append(joined)
        return ctypes.addressof(joined)
    return ctypes.addressof(value)


def int64s(values):
    values = list(values)
    return (ctypes.c_int64 * len(values))(*values)


def int32s(values):
    values = list(values)
    return (ctypes.c_int32 * len(values))(*values)


class Tensor(Struct):
    """A DLTensor over memory of torch, which is kept alive, on the device `where` (kind, index)."""

    def __init__(self, tensor, where, name=None):
        shape, strides = int64s(tensor.shape), int64s(tensor.stride())
        super().__init__(
            "DLTensor",
            data=tensor.data_ptr(),
            device=device(*where),
            ndim=tensor.dim(),
            dtype=dtype(name or str(tensor.dtype).removeprefix("torch.")),
            shape=shape,
            strides=strides,
        )
        self.kept.append(tensor)


class Library:
    def __init__(self, path):
        self.functions = ctypes.CDLL(str(path))
        self.functions.kvc_version_string.restype = ctypes.c_char_p
        self.functions.kvc_status_name.restype = ctypes.c_char_p

    @property
    def version(self):
        return self.functions.kvc_version_string().decode()

    def call(self, name, *args):
        """Arguments: numbers, None, Structs, ctypes values and arrays. Raises Refused with the library's words."""
        error = Struct("kvc_error")
        kept = []
        converted = [
            (
                ctypes.c_void_p(address(arg, kept))
                if isinstance(arg, (Struct, list)) or arg is None
                else arg
            )
            for arg in args
        ]
        converted = [ctypes.c_int64(arg) if isinstance(arg, int) else arg for arg in converted]
        status = getattr(self.functions, name)(*converted, ctypes.c_void_p(error.pointer()))
        if status:
            raise Refused(
                f"{name}: {self.functions.kvc_status_name(status).decode()}: {error.text('message')}"
            )

    def create(self, name, *args):
        """A call whose last output is a handle."""
        handle = ctypes.c_void_p()
        self.call(name, *args, ctypes.byref(handle))
        return handle

    def device_caps(self, kind, index):
        caps = Struct("kvc_device_caps")
        # DLDevice travels by value: eight bytes, one register.
        self.call(
            "kvc_device_query", ctypes.c_uint64(int.from_bytes(device(kind, index), "little")), caps
        )
        return caps

    def exported_int32(self, managed):
        """Values of an exported int32 vector; the export is given back."""
        at, size = LAYOUT["structs"]["DLManagedTensorVersioned"]["fields"]["dl_tensor"]
        tensor = Struct("DLTensor")
        tensor.bytes[:] = ctypes.string_at(managed.value + at, size)
        length = ctypes.cast(tensor["shape"], ctypes.POINTER(ctypes.c_int64))[0]
        begin = tensor["data"] + tensor["byte_offset"]
        if tensor.bytes.raw[tensor.layout["fields"]["device"][0]] == CUDA:
            import torch

            values = torch.as_tensor(OnDevice(begin, length), device="cuda").tolist()
        else:
            values = list((ctypes.c_int32 * length).from_address(begin))
        ctypes.cast(managed, ctypes.POINTER(Export)).contents.deleter(managed.value)
        return values


class Export(ctypes.Structure):
    """The beginning of DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class OnDevice:
    """int32 memory of a CUDA device, as torch takes it."""

    def __init__(self, begin, length):
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": "<i4",
            "data": (begin, False),
            "version": 3,
        }
