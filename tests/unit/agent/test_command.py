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
        (["python", "-mjob", "x"], (), ("python", "-mjob", "x")),
        (["python", "-um", "job"], (), ("python", "-um", "job")),
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
'What it does.'
import os.path, json as j
from collections import abc
from . import sibling
try:
    import zlib
except ImportError:
    zlib = None
def late():
    import csv
import mine, package.inner
sys.path.insert(0, "vendored")
import tomllib
"""


@pytest.mark.parametrize("words", [["python", "train.py"], ["python", "-m", "train"], ["python", "-m", "sub.train"]])
def test_the_modules_that_a_script_imports_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Later imports may find something else. A package around a module is not imported to find it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "__init__.py").write_text("raise SystemExit(0)")
    for name in ("train.py", "sub/train.py"):
        (tmp_path / name).write_text(SCRIPT)
    found = ["os.path", "json", "collections", "zlib", "mine", "package.inner"]
    assert Command.of(words).imports() == [*found, "torch._dynamo", "deeppart.checkpointer"]


@pytest.mark.parametrize("text", ["import (", "\0", ""])
def test_a_script_that_cannot_be_read_names_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert Command.of(["python", str(tmp_path / "train.py")]).imports() == []
    assert Command.of(["python", str(tmp_path / "no.py")]).imports() == []
    assert Command.of(["python", "-m", "no.such.module"]).imports() == []
