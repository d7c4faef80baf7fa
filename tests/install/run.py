"""Outside users of an installed tree: the lines of docs/guide.md, pkg-config --static, dlopen, and the installed command.

The tree is installed, moved to another place, and only then used: nothing in it may point back.
Usage: run.py <build folder> <C compiler>
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GUIDE = (HERE.parents[1] / "docs/guide.md").read_text().split("## Building against it")[1]
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
    wanted = [prefix / "include/kvcache.h", prefix / "include/kvcache_api.h", prefix / "include/dlpack/dlpack.h", libdir / "libkvcache.a", libdir / "libkvcache.so.0",
              libdir / "pkgconfig/kvcache.pc", libdir / "pkgconfig/kvcache-static.pc", libdir / "cmake/kvcache/kvcacheConfig.cmake"]
    missing = [str(path.relative_to(prefix)) for path in wanted if not path.exists()]
    if missing:
        sys.exit(f"install: not installed: {missing}")


def needs_shared_library(program):
    return "libkvcache" in run("ldd", program)


def by_find_package(prefix, scratch):
    """The guide's lines in a project in C, once with each target that they name."""
    lines = re.search(r"^```cmake\n(find_package.*?)^```", GUIDE, re.S | re.M).group(1)
    targets = re.findall(r"kvcache::\w+", lines)
    if targets != ["kvcache::kvcache", "kvcache::kvcache_static"]:
        sys.exit(f"install: docs/guide.md names the targets {targets}")
    versions = []
    for target in targets:
        project = scratch / target.replace("::", "_")
        project.mkdir()
        shutil.copy(HERE / "consumer.c", project / "program.c")
        (project / "guide.cmake").write_text(lines.replace(targets[0], target))
        shutil.copy(HERE / "find_package/CMakeLists.txt", project)
        options = [f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release"]
        if target == targets[0]:
            options.append("-DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON")  # the shared library needs none
        run("cmake", "-S", project, "-B", project / "build", *options)
        run("cmake", "--build", project / "build")
        if needs_shared_library(project / "build/program") != (target == targets[0]):
            sys.exit(f"install: {target} is linked the other way")
        versions.append(run(project / "build/program"))
    return versions


def by_pkg_config(libdir, scratch, compiler):
    """The guide's lines, in a folder that holds program.c and with `cc` being the build's compiler."""
    project = scratch / "pkg-config"
    (project / "bin").mkdir(parents=True)
    (project / "bin/cc").symlink_to(shutil.which(compiler))
    shutil.copy(HERE / "consumer.c", project / "program.c")
    search = {**os.environ, "PKG_CONFIG_PATH": str(libdir / "pkgconfig"), "PATH": f"{project / 'bin'}:{os.environ['PATH']}"}
    lines = re.search(r"^```sh\n(.*?)^```", GUIDE, re.S | re.M).group(1).splitlines()
    if len(lines) != 2:
        sys.exit(f"install: docs/guide.md has {len(lines)} lines for pkg-config, expected a shared and a static one")
    versions = []
    for line, is_shared in zip(lines, (True, False)):
        run("sh", "-c", line, cwd=project, env=search)
        if needs_shared_library(project / "program") != is_shared:
            sys.exit(f"install: linked the other way: {line}")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(libdir)} if is_shared else None
        versions.append(run(project / "program", env=environment))

    # What build systems do: the private libraries of the shared package, and the archive by name.
    flags = run("pkg-config", "--static", "--cflags", "--libs", "kvcache", env=search).split()
    flags = [libdir / "libkvcache.a" if flag == "-lkvcache" else flag for flag in flags]
    run(compiler, *STRICT, HERE / "consumer.c", "-o", scratch / "by_pkg_config_static", *flags)
    return [*versions, run(scratch / "by_pkg_config_static")]


def by_build_folder(build, scratch, compiler):
    """pkg-config with the build folder itself, which has no installed tree around it."""
    search = {**os.environ, "PKG_CONFIG_PATH": str(build.resolve())}
    search.pop("LD_LIBRARY_PATH", None)
    versions = []
    for package, is_shared in (("kvcache", True), ("kvcache-static", False)):
        program = scratch / f"in_place_{package}"
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", package, env=search))
        run(compiler, *STRICT, HERE / "consumer.c", "-o", program, *flags)
        if needs_shared_library(program) != is_shared:
            sys.exit(f"install: {package} of the build folder is linked the other way")
        versions.append(run(program, env=search))
    return versions


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
        versions += by_build_folder(build, scratch, compiler)
        versions.append(by_dlopen(prefix, libdir, scratch, compiler))
        if len(set(versions)) != 1:
            sys.exit(f"install: the consumers saw different libraries: {versions}")
        tool = prefix / "bin/kvcache"
        if (build / "bin/kvcache").exists() and "demo" not in run(tool, "--help"):
            sys.exit("install: `kvcache --help` does not name the demo")
        print(f"install: ok, {len(versions)} consumers of {versions[0]}")


if __name__ == "__main__":
    main()
