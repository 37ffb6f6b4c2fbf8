"""What a command line runs, and what will be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deeppart.agent.command import Command

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "interpreter", "arguments"),
    [
        (["python", "train.py", "--lr", "1"], ("python",), ("train.py", "--lr", "1")),
        (
            ["python3.11", "-u", "-W", "error", "-m", "job", "x"],
            ("python3.11", "-u", "-W", "error"),
            ("-m", "job", "x"),
        ),
        (["/opt/bin/python3", "-Xdev", "train.py"], ("/opt/bin/python3", "-Xdev"), ("train.py",)),
        (["train.py", "x"], (PYTHON,), ("train.py", "x")),
        (["python", "-c", "print(1)"], (), ("python", "-c", "print(1)")),
        (["python"], (), ("python",)),
        (["python", "-m"], (), ("python", "-m")),
        (["./train", "x.py"], (), ("./train", "x.py")),
        (["pythonic", "x.py"], (), ("pythonic", "x.py")),
    ],
)
def test_a_python_is_told_from_other_programs(
    words: list[str], interpreter: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    assert Command.of(words) == Command(interpreter, arguments)


SCRIPT = """
import os.path, json as j
from collections import abc
from . import sibling
try:
    import zlib
except ImportError:
    zlib = None
import mine, package.inner
def late():
    import csv
if __name__ == "__main__":
    import tomllib
"""


def test_the_modules_of_a_script_without_those_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the directory of the script, or where it is started, may be edited between two starts."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.py").touch()
    there = tmp_path / "there"
    (there / "package").mkdir(parents=True)
    monkeypatch.chdir(there)
    found = Command.of(["python", str(tmp_path / "train.py")]).imports()
    assert found == ["os.path", "json", "collections", "zlib", "torch._dynamo", "deeppart.checkpointer"]


@pytest.mark.parametrize("text", ["import (", "\0", ""])
def test_a_script_that_cannot_be_read_names_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert Command.of(["python", str(tmp_path / "train.py")]).imports() == []
    assert Command.of(["python", str(tmp_path / "no.py")]).imports() == []
    assert Command.of(["python", "-m", "no.such.module"]).imports() == []
