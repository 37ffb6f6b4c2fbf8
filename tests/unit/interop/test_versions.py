"""Packages that are too old, or missing, are named; imports of trainers' modules say so."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from deeppart.errors import ConfigError
from deeppart.interop.versions import require


@pytest.mark.parametrize(
    ("oldest", "enough"),
    [
        *((oldest, True) for oldest in ("2", "2.9", "2.9.11", "2.10", "2.10.0", "2.10rc1", "0.1rc1")),
        *((oldest, False) for oldest in ("2.10.1", "2.11", "3", "10.0", "2.100")),
    ],
)
def test_versions_are_compared_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: str, enough: bool
) -> None:
    """What is installed is 2.10, which as a text comes before 2.9."""
    installed(tmp_path, "made-up", "2.10.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with nullcontext() if enough else pytest.raises(ConfigError, match="needs a newer made-up"):
        require("made-up", oldest, "this")


def installed(folder: Path, package: str, version: str) -> None:
    """What an installed package leaves for ``importlib.metadata``."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def test_what_is_too_old_is_named_with_both_versions() -> None:
    with pytest.raises(ConfigError) as told:
        require("torch", "99.1", "deeppart.interop.x")
    for part in ("deeppart.interop.x", "torch 99.1 or newer", metadata.version("torch"), "pip install 'torch>=99.1'"):
        assert part in str(told.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-trainer"):
        require("no-such-trainer", "1", "this")


VERSIONS = {
    "accelerate": ("accelerate", "1.9.0"),
    "lightning": ("lightning", "2.5.9"),
    "transformers": ("transformers", "4.57.0"),
    "torchtitan": ("torchtitan", "0.2.2"),
    "deepspeed": ("deepspeed", "0.17.6"),
    "megatron": ("megatron-core", "0.14.0"),
}


def test_each_module_refuses_a_trainer_that_is_too_old(tmp_path: Path) -> None:
    """Before it imports anything of it, so an old layout of its modules does not matter."""
    for package, version in VERSIONS.values():
        installed(tmp_path, package, version)
    script = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
from deeppart.errors import ConfigError
for module in {sorted(VERSIONS)!r}:
    try:
        importlib.import_module(f"deeppart.interop.{{module}}")
    except ConfigError as error:
        print(module, "/", str(error).replace(chr(10), " "))
"""
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert [line.split(" / ")[0] for line in told] == sorted(VERSIONS)
    for line in told:
        package, version = VERSIONS[line.split(" / ")[0]]
        assert package in line and version in line and "newer" in line
