"""What help() and a notebook show: every public name says what it is, every field its meaning."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest

import kvcache
from kvcache import prefix

MODULES = {"kvcache": kvcache, "kvcache.ops": kvcache.ops, "kvcache.errors": kvcache.errors}
PLAIN = (int, str)  # constants, which have no text of their own


def public():
    """Every public function, class, and what a class of the package defines: name and object."""
    for module, owner in MODULES.items():
        yield module, owner
        for name in owner.__all__:
            value = getattr(owner, name)
            if isinstance(value, PLAIN):
                continue
            yield f"{module}.{name}", value
            if not inspect.isclass(value):
                continue
            for base in value.__mro__:
                if not base.__module__.startswith("kvcache"):
                    continue
                for member, given in vars(base).items():
                    if member.startswith("_"):
                        continue
                    if isinstance(given, (classmethod, staticmethod)):
                        given = given.__func__
                    if isinstance(given, property) or callable(given):
                        yield f"{module}.{name}.{member}", given


def structs():
    """Classes whose fields are the interface, with the names of the fields."""
    for owner in MODULES.values():
        for name in owner.__all__:
            value = getattr(owner, name)
            if not inspect.isclass(value):
                continue
            if dataclasses.is_dataclass(value):
                yield value, [field.name for field in dataclasses.fields(value) if field.name[0] != "_"]
            elif hasattr(value, "_fields"):
                yield value, list(value._fields)
    yield prefix.Query, list(prefix.Query.__annotations__)


def inherited(name, value):
    """Whether an exception shows only the text of its base."""
    return inspect.isclass(value) and "__doc__" not in vars(value)


def test_no_public_name_lacks_a_text():
    seen = dict(public())
    assert len(seen) > 150
    silent = [
        name
        for name, value in seen.items()
        if not (getattr(value, "__doc__", None) or "").strip()
        or inherited(name, value)
        or re.match(r"\w+\(.*\)$", value.__doc__)  # what dataclasses and named tuples write by themselves
    ]
    assert silent == []


@pytest.mark.parametrize("kind, fields", [pytest.param(*pair, id=pair[0].__name__) for pair in structs()])
def test_help_explains_every_field(kind, fields):
    text = inspect.getdoc(kind)
    explained = re.findall(r"^(\w+): \S", text, re.MULTILINE)
    assert [name for name in explained if name in fields] == fields


@pytest.mark.parametrize("kind", [kvcache.Layer, kvcache.Config, kvcache.AttnOptions, kvcache.PlanInfo, kvcache.Stats])
def test_no_text_sends_the_reader_to_the_header(kind):
    assert "kvcache.h" not in inspect.getdoc(kind)


def test_attributes_that_are_no_fields_are_explained_too():
    for kind, names in (
        (kvcache.Cache, ("plan", "prefix", "events")),
        (kvcache.Plan, ("config", "info")),
        (kvcache.Forward, ("cache", "seqs", "num_tokens")),
        (kvcache.Tensor, ("shape", "strides", "dtype_code", "readonly", "data_address")),
        (kvcache.Error, ("status", "detail", "sys_code")),
    ):
        for name in names:
            assert re.search(rf"^{name}: \S", inspect.getdoc(kind), re.MULTILINE), (kind, name)


def test_modules_say_what_they_are_for():
    apart = ("hf", "_capi", "__main__")  # packages of its own, the extension, the command
    names = [found.name for found in pkgutil.iter_modules(kvcache.__path__) if found.name not in apart]
    names = [name for name in names if not name.startswith("events_publisher")]  # needs more packages
    assert "cache" in names and "tensors" in names
    for name in names:
        assert importlib.import_module(f"kvcache.{name}").__doc__, name
