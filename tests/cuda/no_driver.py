"""The CUDA back end on a machine without a driver: the library loads, gives its table, and says that there is no driver.

Usage: no_driver.py <libkvcache_cuda.so> <version> <program of no_driver.c>
Where a driver is installed, what needs its absence is left out, and the rest is checked all the same.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys

# The C and C++ run time and nothing else: the CUDA run time is inside, and opens the driver when it is first called.
ALLOWED = re.compile(r"^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so\.\d+$")
EXPORTED = {"kvc_cuda_backend"}
OK, NO_DRIVER, NO_DEVICE = 0, 1, 2


class Failure(ctypes.Structure):
    _fields_ = [("error", ctypes.c_int32), ("text", ctypes.c_char * 240)]


class TableHead(ctypes.Structure):
    """The beginning of kvc::cuda::BackendTable."""
    _fields_ = [("struct_size", ctypes.c_uint32), ("version", ctypes.c_char_p),
                ("count_devices", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(Failure)))]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linkage(library):
    names = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", library).splitlines()}
    if names != EXPORTED:
        yield f"exports {', '.join(sorted(names))}; only {', '.join(EXPORTED)} is wanted"
    dynamic = output("readelf", "-dW", library)
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not ALLOWED.match(name):
            yield f"needs {name}"
    for line in output("ldd", library).splitlines():
        name = pathlib.Path(line.split()[0]).name
        if not ALLOWED.match(name) and not name.startswith("linux-vdso"):
            yield f"loads {name}"
    if "NODELETE" not in dynamic:
        yield "not linked with -z nodelete"
    if "RPATH" in dynamic or "RUNPATH" in dynamic:
        yield "carries a library path of the build machine"


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


def table(library, version):
    backend = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    backend.kvc_cuda_backend.restype = ctypes.POINTER(TableHead)
    head = backend.kvc_cuda_backend()
    if not head:
        yield "kvc_cuda_backend() is null"
        return
    if head.contents.version != version.encode():
        yield f"the table is of version {head.contents.version}, not {version}"
    if head.contents.struct_size < ctypes.sizeof(TableHead):
        yield f"struct_size is {head.contents.struct_size}"
    number, failure = ctypes.c_int32(-1), Failure()
    result = head.contents.count_devices(ctypes.byref(number), ctypes.byref(failure))
    wanted = (OK, NO_DRIVER, NO_DEVICE) if has_driver() else (NO_DRIVER,)
    if result not in wanted:
        yield f"count_devices gives {result}; wanted is {' or '.join(map(str, wanted))}"
    if result != OK and not failure.text:
        yield "count_devices failed without a text"


def main():
    library, version, program = sys.argv[1:4]
    findings = list(linkage(library)) + list(table(library, version))
    through_core = subprocess.run([program, "driver" if has_driver() else "no-driver"], capture_output=True, text=True)
    if through_core.returncode:
        findings.append(f"{program}: {through_core.stdout.strip() or through_core.returncode}")
    for finding in findings:
        print(finding)
    size = pathlib.Path(library).stat().st_size
    print(f"no_driver: {len(findings)} finding(s)" if findings else f"no_driver: ok, {size} bytes")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
