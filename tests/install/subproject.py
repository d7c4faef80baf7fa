"""The sources as a part of somebody's build in C, the way of docs/guide.md, and plain CMake the way of README.md.

Builds the library once more, in a folder of its own, so that a definition or a path that only this repository's build sets is noticed.
Usage: subproject.py <C compiler> <C++ compiler> <DLPack include folder>
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode:
        sys.exit(f"subproject: failed: {command}\n{result.stdout}{result.stderr}")
    return result.stdout


def as_subproject(scratch, environment):
    text = (ROOT / "docs/guide.md").read_text()
    lines = re.search(r"^```cmake\n(add_subdirectory.*?)^```", text, re.S | re.M).group(1)
    static = re.search(r"^target_link_libraries.*", lines, re.M).group(0).replace("kvcache::kvcache)", "kvcache::kvcache_static)")
    shutil.copy(HERE / "consumer.c", scratch / "program.c")
    (scratch / "libkvcache").symlink_to(ROOT)
    (scratch / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES C)\nset(CMAKE_C_STANDARD 11)\n"
        f"add_executable(program program.c)\nadd_executable(program_static program.c)\n{lines}"
        f"{static.replace('(program ', '(program_static ')}\ninstall(TARGETS program RUNTIME DESTINATION bin)\n")
    build = scratch / "build"
    # Optimising would take the longer half of the time and show nothing more.
    run(["cmake", "-S", scratch, "-B", build, "-DCMAKE_BUILD_TYPE=Debug", "-DKVCACHE_KERNEL_OPTIMIZATION=-O0"], env=environment)
    run(["cmake", "--build", build, "--parallel", str(os.cpu_count())], env=environment)
    versions = {run([build / "program"]), run([build / "program_static"])}
    if len(versions) != 1:
        sys.exit(f"subproject: the programs saw different libraries: {versions}")
    built = [path.name for path in build.rglob("*") if path.is_file() and os.access(path, os.X_OK) and not path.suffix]
    if unwanted := set(built) - {"program", "program_static"}:
        sys.exit(f"subproject: a part of another build gets programs of ours: {sorted(unwanted)}")
    if (files := installed(build, scratch / "outer")) != {"bin/program"}:
        sys.exit(f"subproject: the outer project installs {sorted(files)}, expected its own program alone")
    run(["cmake", "-DKVCACHE_INSTALL=ON", build], env=environment)
    files = {name.rpartition("/")[2] for name in installed(build, scratch / "asked")}
    if missing := {"libkvcache.so.0", "kvcache.h", "dlpack.h", "kvcache.pc", "kvcacheConfig.cmake"} - files:
        sys.exit(f"subproject: KVCACHE_INSTALL=ON does not install {sorted(missing)}")
    return versions.pop().strip()


def installed(build, prefix):
    """Names below the prefix of what the build's install rules bring."""
    run(["cmake", "--install", build, "--prefix", prefix])
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}


def plain_cmake(scratch, environment):
    """README's commands in a copy of the tree. Nothing is compiled: what the build would make is asked of Ninja; run.py
    installs."""
    text = (ROOT / "README.md").read_text()
    commands = [line for line in re.search(r"^```sh\n(cmake -B .*?)^```", text, re.S | re.M).group(1).splitlines() if line]
    if [line.split()[1] for line in commands] != ["-B", "--build", "--install"]:
        sys.exit(f"subproject: README.md builds with {commands}, expected cmake -B, --build, --install")
    tree = scratch / "fresh"
    for name in ("include", "kernels", "src", "tools", "examples"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("CMakeLists.txt", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(["sh", "-c", commands[0]], cwd=tree, env=environment)
    def made_by(target):
        return run(["ninja", "-C", "build", "-t", "commands", target], cwd=tree)
    for product in ("libkvcache.so", "libkvcache.a", "-o bin/kvcache"):
        if product not in made_by("all"):
            sys.exit(f"subproject: `{commands[1]}` does not build {product}")
    if "CMAKE_BUILD_TYPE:STRING=Release" not in (tree / "build/CMakeCache.txt").read_text().splitlines():
        sys.exit(f"subproject: `{commands[0]}` does not configure a release build")
    if "-Wl,-z,defs" not in made_by("libkvcache.so"):
        sys.exit("subproject: libkvcache.so may have undefined symbols")
    if "libkvcache.so" not in made_by("kvcache") or "-o bin/kvcache" in made_by("kvcache"):
        sys.exit("subproject: the target kvcache is not the library")


def sanitized(scratch, environment):
    """A consumer's own sanitizers: clang brings their run time with the program, so the library has undefined symbols."""
    if not shutil.which("clang++"):
        print("subproject: no clang++ here: sanitizers of a consumer were not tried")
        return
    environment = {**environment, "CC": "clang", "CXX": "clang++"}
    options = "-DCMAKE_CXX_FLAGS=-fsanitize=undefined", "-DCMAKE_CXX_FLAGS_DEBUG=-fsanitize=address", "-DOPTIONS=-fsanitize=address,undefined"
    project = scratch / "sanitized"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES C CXX)\n"
        f"add_compile_options(${{OPTIONS}})\nadd_subdirectory({ROOT} libkvcache)\n")
    for number, option in enumerate(options):
        run(["cmake", "-S", project, "-B", project / str(number), "-DCMAKE_BUILD_TYPE=Debug", option], env=environment)
        commands = run(["ninja", "-C", project / str(number), "-t", "commands", "kvcache"])
        if "-z,defs" in commands:
            sys.exit(f"subproject: libkvcache.so is linked with -z,defs although clang was given {option}")
        # A program in C is linked without the run time of checks that C++ alone has.
        if any("-fno-sanitize=vptr,function" not in line for line in commands.splitlines() if line.endswith(".cc")):
            sys.exit(f"subproject: clang was given {option}, and programs in C cannot link libkvcache.so")


def refusals(scratch, environment):
    """What is not installed is named, with the packages that bring it."""
    def refused(build, *options):
        done = subprocess.run(["cmake", "-S", ROOT, "-B", scratch / build, *options], capture_output=True, text=True, env=environment)
        if not done.returncode:
            sys.exit(f"subproject: configured with {options}")
        return " ".join(done.stderr.split())
    for package, debian, by in (("CLI11", "libcli11-dev", "the kvcache command (KVCACHE_BUILD_TOOLS)"),
                                ("PCRE2", "libpcre2-dev", "the kvcache command (KVCACHE_BUILD_TOOLS)"),
                                ("utf8proc", "libutf8proc-dev", "the kvcache command (KVCACHE_BUILD_TOOLS)"),
                                ("OpenSSL", "libssl-dev", "the library"), ("nlohmann_json", "nlohmann-json3-dev", "the library"),
                                ("xxHash", "libxxhash-dev", "the library")):
        said = refused(f"no_{package}", f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON", "-DKVCACHE_FETCH_HEADERS=OFF")
        for wanted in (f"{package} was not found, and {by} needs it.", debian, "Fedora: ", "Homebrew: "):
            if wanted not in said:
                sys.exit(f"subproject: without {package}: no {wanted!r} in: {said}")
    said = refused("old_dlpack", f"-DKVCACHE_DLPACK_INCLUDE_DIR={scratch}")
    if f"KVCACHE_DLPACK_INCLUDE_DIR = {scratch}" not in said or "expected 1.0 or later" not in said:
        sys.exit(f"subproject: a folder without dlpack.h: {said}")


def main():
    # Ninja has one name space for targets and files: there a program `kvcache` in the build folder hides the library's target.
    environment = {**os.environ, "CMAKE_GENERATOR": "Ninja", "CC": sys.argv[1], "CXX": sys.argv[2], "CMAKE_INCLUDE_PATH": sys.argv[3]}
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder).resolve()
        # Where there is a compiler cache, the folder's random name is kept out of it.
        launcher = str(ROOT / ".ci" / "ccache")
        environment |= {"CMAKE_C_COMPILER_LAUNCHER": launcher, "CMAKE_CXX_COMPILER_LAUNCHER": launcher, "CCACHE_BASEDIR": str(scratch)}
        refusals(scratch, environment)
        plain_cmake(scratch, environment)
        sanitized(scratch, environment)
        version = as_subproject(scratch, environment)
        print(f"subproject: ok, plain CMake and two programs of a project in C with {version}")


if __name__ == "__main__":
    main()
