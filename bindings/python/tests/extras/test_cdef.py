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
    directives = [line for line in text.splitlines() if line.startswith("#")]
    assert [line.split()[1] for line in directives] == ["KVC_ABI_VERSION_MAJOR", "KVC_ABI_VERSION_MINOR"]
    for word in ("KVC_API", "KVC_NULLABLE", "KVC_NOEXCEPT", "__attribute__", "/* Kept", "extern"):
        assert word not in text
