"""The package as it is installed: what it carries, what it says when a part is missing, its types, and the lines of its README."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

import kvcache
from kvcache._library import package_file

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(kvcache.__file__).parent
README = (HERE.parent / "README.md").read_text(encoding="utf-8")


def run(*command, **words):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, **words
    )


def python(code, **words):
    return run(sys.executable, "-c", textwrap.dedent(code), **words)


def ten_lines():
    """The program of the README, and what it says that it prints."""
    blocks = re.findall(r"```(python|)\n(.*?)```", README, re.DOTALL)
    return blocks[0][1], blocks[1][1]


# ---- what it carries


def test_the_library_is_found_and_answers():
    library = ctypes.CDLL(kvcache.lib_path())
    library.kvc_version_string.restype = ctypes.c_char_p
    assert library.kvc_version_string().decode() == kvcache.version()
    assert (
        pathlib.Path(kvcache.get_include(), "kvcache.h").is_file()
        and pathlib.Path(kvcache.get_include(), "dlpack", "dlpack.h").is_file()
    )


def test_what_is_named_as_a_shared_object_is_one():
    named = [path for path in PACKAGE.rglob("*.so*") if path.is_file()]
    assert {path.name for path in named} >= {"_capi.abi3.so", "libkvcache.so.0"}
    assert [path.name for path in named if path.read_bytes()[:4] != b"\x7fELF"] == []


def test_only_one_library_is_loaded():
    found = python("""
        import kvcache
        lines = [line.split()[-1] for line in open("/proc/self/maps") if "/libkvcache.so" in line]
        print(len(set(lines)), lines[0] == __import__("os").path.realpath(kvcache.lib_path()))
        """)
    assert found.stdout.split() == ["1", "True"], found.stdout + found.stderr


PROGRAM = """
#include <kvcache.h>
#include <stdio.h>
int main(void) { return puts(kvc_version_string()) < 0; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_c_programs_build_against_the_package(tmp_path):
    source = tmp_path / "main.c"
    source.write_text(PROGRAM)
    found = run(sys.executable, "-m", "kvcache", "config", "--includedir", "--libdir", cwd=tmp_path)
    include, lib = found.stdout.split()
    built = run(
        "cc", source, f"-I{include}", f"-L{lib}", "-lkvcache", f"-Wl,-rpath,{lib}", "-o", tmp_path / "main"
    )
    assert built.returncode == 0, built.stderr
    assert run(tmp_path / "main").stdout.strip() == kvcache.version()


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("cc")), reason="no CMake")
def test_cmake_projects_find_the_package(tmp_path):
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(t C)\nfind_package(kvcache 0.1 REQUIRED)\n"
        "add_executable(main main.c)\ntarget_link_libraries(main kvcache::kvcache)\n"
    )
    configured = run(
        "cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-Dkvcache_DIR={kvcache.get_cmake_dir()}"
    )
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", tmp_path / "b")
    assert built.returncode == 0, built.stdout + built.stderr
    assert run(tmp_path / "b" / "main").stdout.strip() == kvcache.version()


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="no pkg-config")
def test_pkg_config_finds_the_package():
    found = run(
        "pkg-config",
        "--cflags",
        "--libs",
        "kvcache",
        env={**os.environ, "PKG_CONFIG_PATH": kvcache.get_pkgconfig_dir()},
    )
    assert found.returncode == 0 and "-lkvcache" in found.stdout, found.stderr


@pytest.mark.skipif(package_file("bin", "kvcache") is None, reason="built from a library without its command")
def test_the_command_is_there(tmp_path):
    found = run(sys.executable, "-m", "kvcache", "info", cwd=tmp_path)
    assert found.returncode == 0 and kvcache.version().split()[0] in found.stdout, found.stderr
    assert run(sys.executable, "-m", "kvcache", "no-such-command", cwd=tmp_path).returncode not in (0, None)


def test_config_says_where_things_are(tmp_path):
    found = run(sys.executable, "-m", "kvcache", "config", "--lib", "--cmakedir", cwd=tmp_path)
    assert found.stdout.split() == [kvcache.lib_path(), kvcache.get_cmake_dir()]
    wrong = run(sys.executable, "-m", "kvcache", "config", "--colour", cwd=tmp_path)
    assert wrong.returncode == 2 and "--libdir" in wrong.stderr


def test_what_needs_more_packages_is_imported_when_asked_for():
    found = python(
        """
        import sys, kvcache
        print(any(name in sys.modules for name in ("zmq", "msgspec", "torch", "ml_dtypes")))
        try:
            print(kvcache.EventPublisher.__name__)
        except ImportError as error:
            print("pip install pyzmq msgspec" in str(error) and "EventPublisher")
        print(hasattr(kvcache, "no_such_name"))
        """,
        cwd=HERE,
    )
    assert found.stdout.split() == ["False", "EventPublisher", "False"], found.stdout + found.stderr


# ---- when a part is missing


def broken_package(folder, library):
    """The package without, or with another, shared library."""
    target = folder / "kvcache"
    shutil.copytree(
        PACKAGE, target, ignore=shutil.ignore_patterns("libkvcache.so*", "bin", "hf", "__pycache__")
    )
    if library is not None:
        shutil.copy(library, target / "lib" / "libkvcache.so.0")
    found = python("import kvcache", env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder)
    assert found.returncode != 0 and "ImportError" in found.stderr, found.stderr
    assert str(target / "lib" / "libkvcache.so.0") in found.stderr and "0.1" in found.stderr, found.stderr
    return found.stderr.strip().splitlines()[-1]


def test_a_missing_library_is_named(tmp_path):
    said = broken_package(tmp_path, None)
    assert "not found" in said and "where KVCACHE_LIB says" in said


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize(
    "version, says",
    [("0x10000", "has version 1.0; kvcache needs 0.1"), ("0", "has version 0.0; kvcache needs 0.1")],
)
def test_a_library_of_another_version_is_named_with_both_versions(tmp_path, version, says):
    source = tmp_path / "old.c"
    source.write_text(f"unsigned kvc_abi_version(void) {{ return {version}; }}\n")
    assert run("cc", "-shared", "-fPIC", source, "-o", tmp_path / "old.so").returncode == 0
    assert says in broken_package(tmp_path, tmp_path / "old.so")


def test_what_is_no_library_is_named(tmp_path):
    (tmp_path / "text").write_text("this is no library")
    assert "cannot be loaded" in broken_package(tmp_path, tmp_path / "text")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_variable_names_another_library(tmp_path):
    another = tmp_path / "another.so"
    shutil.copy(kvcache.lib_path(), another)
    code = """
        import kvcache
        cache = kvcache.Cache(layers=[kvcache.Layer(num_kv_heads=1, k_dim=4)], num_pages=4)
        print(kvcache.lib_path())
        print(*{line.split()[-1] for line in open("/proc/self/maps")
                if line.rstrip().endswith(("/another.so", "/libkvcache.so.0"))})
    """
    found = python(code, env={**os.environ, "KVCACHE_LIB": str(another)})
    assert found.stdout.split() == [str(another), str(another)], found.stdout + found.stderr


def test_a_variable_that_names_no_library_is_an_error(tmp_path):
    nowhere = tmp_path / "nowhere.so"
    found = python("import kvcache", env={**os.environ, "KVCACHE_LIB": str(nowhere)})
    assert found.returncode != 0, found.stdout
    assert str(nowhere) in found.stderr and "KVCACHE_LIB" in found.stderr, found.stderr


# ---- types


def mypy(*arguments, **words):
    pytest.importorskip("mypy")
    return run(sys.executable, "-m", *arguments, **words)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def test_the_package_passes_mypy(tmp_path, cache_dir):
    found = mypy(
        "mypy",
        "--config-file",
        HERE.parent / "pyproject.toml",
        "--cache-dir",
        cache_dir,
        "-p",
        "kvcache",
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_program_of_a_user_is_checked(tmp_path, cache_dir):
    good = (
        ten_lines()[0]
        + "\ninfo = kvcache.Plan(kvcache.Config(layers=[])).info.num_pages + 1\nreveal_type(cache.stats().hit_rate)\n"
    )
    (tmp_path / "good.py").write_text(good)
    found = mypy("mypy", "--strict", "--cache-dir", cache_dir, "good.py", cwd=tmp_path)
    assert found.returncode == 0 and '"float"' in found.stdout or '"builtins.float"' in found.stdout, (
        found.stdout
    )
    (tmp_path / "bad.py").write_text(
        'import kvcache\ncache = kvcache.Cache(layers=[], num_pages=1)\ncache.add("one")\n'
        'kvcache.Layer(kind="convolution")\ncache.prefix.match([1], pepper=b"")\n'
    )
    found = mypy("mypy", "--cache-dir", cache_dir, "bad.py", cwd=tmp_path)
    assert [line for line in range(3, 6) if f"bad.py:{line}: error" in found.stdout] == [3, 4, 5], (
        found.stdout
    )


def test_the_annotations_of_the_extension_agree_with_it(tmp_path):
    (tmp_path / "allow").write_text(
        "kvcache\\.names\\.[A-Z][A-Za-z]+\nkvcache\\.hf.*\nkvcache\\.events_publisher.*\nkvcache\\.__main__\n"
    )
    found = mypy(
        "mypy.stubtest",
        "kvcache",
        "--ignore-missing-stub",
        "--concise",
        "--allowlist",
        tmp_path / "allow",
        "--ignore-unused-allowlist",
        "--mypy-config-file",
        HERE.parent / "pyproject.toml",
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stdout + found.stderr


# ---- the README


def test_the_lines_of_the_readme_print_what_it_says(tmp_path):
    program, printed = ten_lines()
    (tmp_path / "readme.py").write_text(program)
    found = run(sys.executable, "readme.py", cwd=tmp_path)
    assert found.stdout == printed, found.stdout + found.stderr


@pytest.mark.skipif(
    "KVCACHE_WHEEL" not in os.environ, reason="KVCACHE_WHEEL names no wheel; bindings/python/test builds one"
)
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    wheel = pathlib.Path(os.environ["KVCACHE_WHEEL"])
    assert "abi3" in wheel.name
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "LD_LIBRARY", "KVCACHE"))
    }
    assert run(sys.executable, "-m", "venv", tmp_path / "venv").returncode == 0
    own = tmp_path / "venv" / "bin" / "python"
    installed = run(own, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, env=clean)
    assert installed.returncode == 0, installed.stderr
    program, printed = ten_lines()
    (tmp_path / "readme.py").write_text(program)
    found = run(own, "readme.py", cwd=tmp_path, env=clean)
    assert found.stdout == printed, found.stdout + found.stderr
    if package_file("bin", "kvcache") is not None:
        assert run(tmp_path / "venv" / "bin" / "kvcache", "--version", env=clean).returncode == 0
