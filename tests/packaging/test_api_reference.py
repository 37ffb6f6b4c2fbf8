"""The API reference names everything that is public, and everything that public names lead to is public."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

import deeppart
import deeppart.elastic
import deeppart.errors
import deeppart.partition
import deeppart.types

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = (deeppart, deeppart.elastic, deeppart.errors, deeppart.partition, deeppart.types)
#: Not for users: what the pipeline tells a handle.
INTERNAL = {"Pending.failures"}


def described() -> set[str]:
    """The names that directives on the pages stand for."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    return set(re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", pages, re.MULTILINE))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_is_described(module: ModuleType) -> None:
    at_top = set(deeppart.__all__) if module is deeppart.errors else set()  # described as what users write
    names = {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("__") and name not in at_top}
    assert len(names) > 5 and not names - described()


def types_of(thing: Any) -> list[Any]:
    """The types that a class or function names; some of them its module imports only for the type checker."""
    later = {name: getattr(module, name) for module in (deeppart, deeppart.types) for name in module.__all__}
    return list(typing.get_type_hints(inspect.unwrap(thing), localns=later).values())


def hints_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """(where, type) of the arguments, results and attributes that a user of a class or function meets."""
    if isinstance(thing, FunctionType):
        yield from ((thing.__name__, hint) for hint in types_of(thing))
        return
    has_fields: bool = dataclasses.is_dataclass(thing)
    if has_fields:
        yield from ((thing.__name__, hint) for hint in types_of(thing))
    for name, member in vars(thing).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        where = f"{thing.__name__}.{name}"
        # What a library makes is not made by its users: ``__init__`` counts where they call it.
        made = name == "__init__" and thing is deeppart.Checkpointer
        if isinstance(function, FunctionType) and where not in INTERNAL and (made or name[0] != "_"):
            yield from ((where, hint) for hint in types_of(function))


def classes_in(hint: Any) -> Iterator[type]:
    """The library's classes in a type, however deep."""
    if isinstance(hint, type) and hint.__module__.split(".")[0] == "deeppart":
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part) if not isinstance(part, list) else (c for each in part for c in classes_in(each))


def test_what_public_names_lead_to_is_public() -> None:
    exported = {id(getattr(module, name)) for module in PUBLIC for name in module.__all__}
    met: dict[str, str] = {}
    for module in PUBLIC:
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type | FunctionType) and not (
                isinstance(thing, type) and issubclass(thing, Exception)
            ):
                met |= {found.__name__: where for where, hint in hints_of(thing) for found in classes_in(hint)
                        if id(found) not in exported}  # fmt: skip
    assert met == {}, "a user meets them there, and cannot import them"


def test_what_is_not_exported_would_be_noticed() -> None:
    assert {found.__name__ for _, hint in hints_of(deeppart.Checkpointer) for found in classes_in(hint)} >= {
        "Config", "Pending", "ScrubReport", "CadenceReport",
    }  # fmt: skip
    assert ("CadenceReport", tuple[deeppart.types.LevelCost, ...]) in list(hints_of(deeppart.types.CadenceReport))


def test_pictures_can_be_drawn() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
