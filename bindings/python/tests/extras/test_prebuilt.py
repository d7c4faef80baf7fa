"""The binding beside a library that was built elsewhere: KVCACHE_PREBUILT names a build folder of another clone, and what is wrong is said."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("swig"), reason="needs cmake and swig")


@pytest.fixture
def copy(root, tmp_path):
    """bindings/python without the clone around it."""
    target = tmp_path / "bindings" / "python"
    skipped = shutil.ignore_patterns("tests", "bench", "__pycache__", "build")
    shutil.copytree(root / "bindings" / "python", target, ignore=skipped)
    return target


def configure(copy, prebuilt):
    """(exit status, what was said in one line)."""
    environment = {name: value for name, value in os.environ.items() if name != "KVCACHE_PREBUILT"}
    done = subprocess.run(
        ["cmake", "-S", copy, "-B", copy / "build", f"-DKVCACHE_PREBUILT={prebuilt}", f"-DPython_EXECUTABLE={sys.executable}"],
        capture_output=True, text=True, env=environment)
    return done.returncode, " ".join(done.stderr.split())


def test_a_build_folder_of_another_clone_serves(copy, library):
    status, said = configure(copy, library.parent)
    assert status == 0, said
    built = subprocess.run(["cmake", "--build", copy / "build", "--parallel", "2"], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert list((copy / "build").glob("_capi*.so"))


def test_a_copy_without_the_library_says_what_it_needs(copy):
    status, said = configure(copy, "")
    assert status != 0
    assert "the sources of libkvcache are neither in" in said and "set KVCACHE_PREBUILT to a build folder" in said, said


def test_what_is_no_build_folder_is_named(copy, tmp_path):
    status, said = configure(copy, tmp_path / "nowhere")
    assert status != 0 and f"KVCACHE_PREBUILT = {tmp_path}/nowhere: no such folder" in said, said
    other = tmp_path / "other"
    other.mkdir()
    status, said = configure(copy, other)
    assert status != 0 and f"KVCACHE_PREBUILT = {other}: no libkvcache.so.0 (looked for {other}/libkvcache.so.0" in said, said
    (other / "CMakeCache.txt").write_text("CMAKE_PROJECT_NAME:STATIC=another\n")
    status, said = configure(copy, other)
    assert status != 0 and "a build folder, but not of libkvcache" in said, said
    (other / "CMakeCache.txt").write_text(f"kvcache_SOURCE_DIR:STATIC={tmp_path}/gone\n")
    status, said = configure(copy, other)
    assert status != 0 and f"its sources, {tmp_path}/gone, are not there any more" in said, said
