"""Where ISA-L is looked for, and what is said when it is not there."""

from __future__ import annotations

import ctypes.util
from importlib import metadata

import pytest

from deeppart.errors import ConfigError
from deeppart.nodes import erasure
from deeppart.nodes.erasure import ReedSolomon

# --- the library is not there -----------------------------------------------------------------------------------------


def refusal(monkeypatch: pytest.MonkeyPatch, bundled: list[str]) -> str:
    """The message when only these files are found; whatever was loaded before stays loaded for other tests."""
    monkeypatch.setattr(erasure, "_bundled", lambda: bundled)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr("deeppart.nodes.erasure.library", erasure.library.__wrapped__)
    with pytest.raises(ConfigError) as caught:
        ReedSolomon(2, 1)
    return str(caught.value)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, [])
    assert "ISA-L" in text and "pip install pyeclib" in text and "libisal2" in text
    assert "neither" in text and "switch the parity level off" in text


def test_a_library_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, ["/nowhere/libisal.so.2"])
    assert "/nowhere/libisal.so.2: " in text and "pip install pyeclib" in text


def test_a_library_without_the_functions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some other file of this name, or a version from before they were there."""
    other = ctypes.util.find_library("c")
    assert other is not None
    text = refusal(monkeypatch, [other])
    assert f"{other}: " in text and "gf_gen_cauchy1_matrix" in text


def test_the_first_library_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = erasure._bundled()
    assert sound, "the tests need pyeclib's wheel"
    monkeypatch.setattr(erasure, "_bundled", lambda: ["/nowhere/libisal.so.2", *sound])
    assert erasure.library.__wrapped__()._name == sound[0]


def test_a_bundled_library_is_taken_without_a_look_at_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would start processes, a compiler among them, from within every rank."""

    def looked(name: str) -> str:
        raise AssertionError(f"find_library({name!r})")

    monkeypatch.setattr(ctypes.util, "find_library", looked)
    assert erasure.library.__wrapped__()._name == erasure._bundled()[0]


def test_without_pyeclib_nothing_is_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    assert erasure._bundled() == []
    monkeypatch.setattr(metadata, "files", lambda name: None)
    assert erasure._bundled() == [], "installed, but without a list of its files"
