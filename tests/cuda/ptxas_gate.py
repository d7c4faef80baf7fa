"""kernels/cuda/tools/compile.py lets a clean kernel through in silence and stops one that spills, keeps an array in local memory, or runs wgmma
one after the other. Usage: ptxas_gate.py <nvcc> <host compiler>
"""

import json
import pathlib
import subprocess
import sys
import tempfile

COMPILE = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda" / "tools" / "compile.py"

CLEAN = """
__global__ void clean(float* x) { x[threadIdx.x] *= 2.f; }
"""
# 80 values per thread live across a loop; 1,024 threads leave 64 registers each.
SPILLING = """
__global__ void __launch_bounds__(1024) spilling(float* a, int n) {
  float x[80];
  for (int i = 0; i < 80; ++i) x[i] = a[i * n + threadIdx.x];
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int i = 0; i < 80; ++i) x[i] = x[i] * x[(i + 7) % 80] + x[(i + 13) % 80];
  for (int i = 0; i < 80; ++i) a[i * n + threadIdx.x] = x[i];
}
"""
# An index that only the run time knows: registers have no addresses.
INDEXED = """
__global__ void indexed(float* a, const int* at) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = a[i];
  for (int k = 0; k < 64; ++k) x[at[k]] += 1.f;
  for (int i = 0; i < 64; ++i) a[i] = x[i];
}
"""
# The accumulator is read while the instruction is in flight.
SERIAL = """
#if __CUDA_ARCH__ == 900 || !defined(__CUDA_ARCH__)
__global__ void __launch_bounds__(128) serial(float* out, unsigned long long a, unsigned long long b, int n) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int i = 0; i < n; ++i) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0;"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(1));
    d[0] += 1.f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
#endif
"""
ALLOWED = [{"kernel": "indexed", "archs": ["80"], "stack_bytes": 4096, "reason": "a test"}]


def compile_text(folder, nvcc, cxx, text, archs, exceptions=()):
    """(exit status, what was printed, report or None, whether there is an object)"""
    (folder / "launch.cu").write_text(text)
    (folder / "exceptions.json").write_text(json.dumps(list(exceptions)))
    object_path, report_path = folder / "launch.cu.o", folder / "launch.cu.json"
    result = subprocess.run([sys.executable, COMPILE, "--nvcc", nvcc, "--archs", archs, "--root", folder, "--source", "launch.cu",
                             "--object", object_path, "--depfile", folder / "launch.d", "--report", report_path,
                             "--exceptions", folder / "exceptions.json", "--", "-std=c++20", "-O3", "-ccbin", cxx],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    report = json.loads(report_path.read_text()) if report_path.exists() else None
    return result.returncode, result.stdout, report, object_path.exists()


def check(nvcc, cxx, folder):
    def run(*args):
        return compile_text(folder, nvcc, cxx, *args)

    status, text, report, there = run(CLEAN, "80,80-virtual,90a")
    if status or text or not there or [kernel["arch"] for kernel in report["kernels"]] != ["80", "90a"]:
        yield f"a clean kernel: {status}, {text!r}, {report}"
    elif str(folder / "launch.cu") not in (folder / "launch.d").read_text():
        yield "the source is not among the dependencies by its full path"
    for name, source, archs, word in (("spilling", SPILLING, "80", "spill_bytes"), ("indexed", INDEXED, "80", "stack_bytes"),
                                      ("serial", SERIAL, "90a", "Potential Performance Loss")):
        status, text, report, there = run(source, archs)
        if not status or word not in text or report or there:
            yield f"{name}: status {status}, object {there}, {text!r}"
    status, text, report, _ = run(INDEXED, "80", ALLOWED)
    if status or text or not report["kernels"][0]["stack_bytes"]:
        yield f"an exception does not hold: {status}, {text!r}"
    status, text, _, _ = run(CLEAN, "80", ALLOWED)
    if not status or "no longer needed" not in text:
        yield f"an exception that nothing needs: {status}, {text!r}"
    status, text, _, _ = run(INDEXED, "80", [{**ALLOWED[0], "reason": ""}])
    if not status or "reason" not in text:
        yield f"an exception without a reason: {status}, {text!r}"
    status, text, _, there = run("this is no C++", "80")
    if not status or there or "error" not in text:
        yield f"an error of the compiler: {status}, {text!r}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        findings = list(check(*sys.argv[1:3], pathlib.Path(folder)))
    for finding in findings:
        print(finding)
    print(f"ptxas_gate: {len(findings)} finding(s)" if findings else "ptxas_gate: ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
