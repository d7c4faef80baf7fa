"""Outside users of an installed tree: find_package, pkg-config (shared and static), dlopen, and the installed command.

The tree is installed, moved to another place, and only then used: nothing in it may point back.
Usage: run.py <build folder> <C compiler>
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror"]


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if result.returncode:
        sys.exit(f"install: failed: {' '.join(str(part) for part in command)}\n{result.stdout}{result.stderr}")
    return result.stdout.strip()


def libdir_of(prefix):
    found = list(prefix.rglob("libkvcache.so"))
    if len(found) != 1:
        sys.exit(f"install: expected one libkvcache.so, found {found}")
    return found[0].parent


def check_files(prefix, libdir):
    wanted = [prefix / "include/kvcache.h", prefix / "include/dlpack/dlpack.h", libdir / "libkvcache.a", libdir / "libkvcache.so.0",
              libdir / "pkgconfig/kvcache.pc", libdir / "cmake/kvcache/kvcacheConfig.cmake"]
    missing = [str(path.relative_to(prefix)) for path in wanted if not path.exists()]
    if missing:
        sys.exit(f"install: not installed: {missing}")


def by_find_package(prefix, scratch):
    build = scratch / "find_package"
    run("cmake", "-S", HERE / "find_package", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", build)
    return [run(build / "shared"), run(build / "static")]


def by_pkg_config(libdir, scratch, compiler):
    search = {**os.environ, "PKG_CONFIG_PATH": str(libdir / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "kvcache", env=search).split()
    run(compiler, *STRICT, HERE / "consumer.c", "-o", scratch / "by_pkg_config", *flags)
    shared = run(scratch / "by_pkg_config", env={**os.environ, "LD_LIBRARY_PATH": str(libdir)})

    # The archive by name: with both kinds installed, the linker prefers the shared one.
    flags = run("pkg-config", "--static", "--cflags", "--libs", "kvcache", env=search).split()
    flags = ["-l:libkvcache.a" if flag == "-lkvcache" else flag for flag in flags]
    run(compiler, *STRICT, HERE / "consumer.c", "-o", scratch / "by_pkg_config_static", *flags)
    if "libkvcache" in run("ldd", scratch / "by_pkg_config_static"):
        sys.exit("install: the static consumer needs the shared library")
    return [shared, run(scratch / "by_pkg_config_static")]


def by_dlopen(prefix, libdir, scratch, compiler):
    run(compiler, *STRICT, "-D_DEFAULT_SOURCE", "-I", prefix / "include", HERE / "dlopen.c", "-o", scratch / "dlopen", "-ldl")
    return run(scratch / "dlopen", libdir / "libkvcache.so.0")


def main():
    build, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        run("cmake", "--install", build, "--prefix", scratch / "first place")
        prefix = (scratch / "first place").rename(scratch / "prefix")
        libdir = libdir_of(prefix)
        check_files(prefix, libdir)
        versions = by_find_package(prefix, scratch) + by_pkg_config(libdir, scratch, compiler)
        versions.append(by_dlopen(prefix, libdir, scratch, compiler))
        if len(set(versions)) != 1:
            sys.exit(f"install: the consumers saw different libraries: {versions}")
        tool = prefix / "bin/kvcache"
        if (build / "kvcache").exists() and "demo" not in run(tool, "--help"):
            sys.exit("install: `kvcache --help` does not name the demo")
        print(f"install: ok, {len(versions)} consumers of {versions[0]}")


if __name__ == "__main__":
    main()
