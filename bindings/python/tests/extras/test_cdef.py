"""The flattened header is the header: layouts, constants and functions are those of tests/abi."""

import json

import pytest

cffi = pytest.importorskip("cffi")


@pytest.fixture(scope="module")
def ffi(cdef):
    ffi = cffi.FFI()
    ffi.cdef(cdef.read_text())
    return ffi


@pytest.fixture(scope="module")
def layout(root):
    return json.loads((root / "tests" / "abi" / "layout.json").read_text())


def struct(ffi, name):
    try:
        return ffi.typeof(name)
    except ffi.error:
        return ffi.typeof(f"struct {name}")  # DLPack's managed tensors have no typedef for both names


def test_every_struct_has_the_c_compilers_size_and_offsets(ffi, layout):
    for name, expected in layout["structs"].items():
        kind = struct(ffi, name)
        fields = {field: [info.offset, ffi.sizeof(info.type)] for field, info in kind.fields}
        assert {"size": ffi.sizeof(kind), "align": ffi.alignof(kind), "fields": fields} == expected, name


def test_every_constant_has_its_value(ffi, layout, library):
    loaded = ffi.dlopen(str(library))
    assert {name: getattr(loaded, name) for name in layout["constants"]} == layout["constants"]


def test_every_exported_function_is_declared_and_found(ffi, root, library):
    loaded = ffi.dlopen(str(library))
    names = [line for line in (root / "tests" / "abi" / "symbols.txt").read_text().split() if line.startswith("kvc_")]
    assert len(names) > 50
    for name in names:
        assert ffi.typeof(getattr(loaded, name)).kind == "function", name


def test_the_function_table_has_the_declared_types(ffi, library):
    loaded = ffi.dlopen(str(library))
    version = loaded.KVC_ABI_VERSION_MAJOR << 16 | loaded.KVC_ABI_VERSION_MINOR
    table = loaded.kvc_get_api(version)
    assert table != ffi.NULL
    assert table.struct_size == ffi.sizeof("kvc_api")
    assert table.get_abi_version() == version
    for name, field in ffi.typeof("kvc_api").fields:
        if field.type.kind == "pointer" or field.type.kind == "function":
            exported = "kvc_abi_version" if name == "get_abi_version" else f"kvc_{name}"
            assert field.type is ffi.typeof(ffi.addressof(loaded, exported)), name


def test_nothing_but_declarations_is_left(cdef):
    text = cdef.read_text()
    assert not [line for line in text.splitlines() if line.lstrip().startswith("#")]
    for word in ("KVC_API", "KVC_NULLABLE", "KVC_NOEXCEPT", "KVC_INT32_ENUM", "__attribute__", "/* Kept", "extern"):
        assert word not in text


def test_macros_that_are_numbers_are_enumerators(ffi, library):
    loaded = ffi.dlopen(str(library))
    assert loaded.KVC_ABI_VERSION == loaded.kvc_abi_version()
    assert loaded.DLPACK_MAJOR_VERSION == 1
    flags = [loaded.DLPACK_FLAG_BITMASK_READ_ONLY, loaded.DLPACK_FLAG_BITMASK_IS_COPIED,
             loaded.DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED]
    assert flags == [1, 2, 4]


def test_dlpack_is_found_where_a_plain_configuration_put_it(cdef, root, tmp_path, monkeypatch):
    """CMake fetches DLPack into the build folder where neither the system nor `make deps` has it."""
    import make_cdef

    header = root / "include" / "kvcache_api.h"
    fetched = tmp_path / "build" / "fetched_headers"
    (fetched / "dlpack").mkdir(parents=True)
    found = make_cdef.find_dlpack(header, root / "build" / "kvcache_cdef.h")
    (fetched / "dlpack" / "dlpack.h").write_text((found / "dlpack" / "dlpack.h").read_text())
    (tmp_path / "build" / "CMakeCache.txt").write_text(f"KVCACHE_DLPACK_INCLUDE_DIR:PATH={fetched}\n")
    monkeypatch.setattr(make_cdef, "ROOT", tmp_path)  # A clone without .deps.
    assert make_cdef.find_dlpack(header, tmp_path / "elsewhere.h") == fetched
    (fetched / "dlpack" / "dlpack.h").write_text("#define DLPACK_VERSION 80\n")
    monkeypatch.setattr(make_cdef, "SYSTEM_FOLDERS", ())
    with pytest.raises(SystemExit, match="no dlpack/dlpack.h >= 1.0 in .*--dlpack"):
        make_cdef.find_dlpack(header, tmp_path / "elsewhere.h")
