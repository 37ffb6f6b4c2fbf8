"""AdaptDL's modules that are not here say what to use instead, by whichever way a script imports them."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from deeppart.elastic import adaptdl


@pytest.mark.parametrize("package", ["deeppart.elastic.adaptdl", "adaptdl"])
@pytest.mark.parametrize("name", sorted(adaptdl._ELSEWHERE))
def test_what_to_use_instead(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adaptdl", adaptdl)
    monkeypatch.setitem(sys.modules, "adaptdl.torch", adaptdl.torch)
    with pytest.raises(ImportError, match=f"AdaptDL's module {name} is not here; use "):
        import_module(f"{package}.{name}")


def test_a_module_that_never_was() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        import_module("deeppart.elastic.adaptdl.nothing")
