"""The documents name files, functions and tests that exist."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import deeppart
from deeppart.access import PERMISSIONS
from deeppart.config.record import OF_EACH_RANK
from deeppart.save import saver
from deeppart.state.compare import DIGESTS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Scripts of the user's, which examples start.
OF_THE_USER = frozenset({"train.py"})
#: ``save/pipeline.py: Pipeline._store, _flush`` and ``test_zombies.py::test_name``.
NAMED = re.compile(r"(?P<file>[\w/]+\.py)(?:::?\s*(?P<names>[\w., ]+))?")


@cache
def files() -> list[Path]:
    folders = ("deeppart", "simulator", "tests", "benchmarks", "examples", "docs")
    return [path for each in folders for path in (ROOT / each).rglob("*.py")]


@cache
def names_in(path: Path) -> set[str]:
    """The names that a file defines; those in a class also as ``Class.name``."""
    return set(defined(ast.parse(path.read_text())))


def defined(tree: ast.AST, owner: str = "") -> Iterator[str]:
    """Functions, classes, and what is assigned to at the top of a module or a class."""
    for node in ast.iter_child_nodes(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        for name in names:
            yield name
            if owner:
                yield f"{owner}.{name}"
        if isinstance(node, ast.ClassDef):
            yield from defined(node, node.name)


def missing(span: str, last: list[str] | None = None) -> list[str]:
    """What a code span names and nothing in the tree has.

    Args:
        last: the file that was named last, which ``::test_name`` alone is about. The one that ``span`` names is noted.
    """
    if last is not None and span.startswith("::"):
        span = last[-1] + span if last else span
    named = NAMED.fullmatch(" ".join(span.split()))
    if named is None or named["file"] in OF_THE_USER:
        return []
    if last is not None:
        last.append(named["file"])
    parts = Path(named["file"]).parts
    found = [path for path in files() if path.parts[-len(parts) :] == parts]
    if not found:
        return [named["file"]]
    wanted = [each.strip() for each in (named["names"] or "").split(",") if each.strip()]
    return [name for name in wanted if not any(name in names_in(path) for path in found)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_names_in_documents_exist(document: Path) -> None:
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL))
    last: list[str] = []
    assert not [f"{span}: no {name}" for span in spans for name in missing(span, last)]


def test_what_does_not_exist_is_noticed() -> None:
    assert missing("::test_nothing", ["test_documents.py"]) == ["test_nothing"]
    assert missing("save/nowhere.py") == ["save/nowhere.py"] and missing("pipeline.py: Pipeline.none") == [
        "Pipeline.none"
    ]
    assert not missing("tests/packaging/test_documents.py::test_what_does_not_exist_is_noticed")


def test_the_agreement_of_a_save_is_as_long_as_the_document_says() -> None:
    """Each field counts twice: the largest of x and of -x say whether all x are equal."""
    told = re.search(r"one all-reduce \(maximum\) of (\d+) integers", (ROOT / "docs" / "architecture.md").read_text())
    assert told and int(told[1]) == 2 * (len(saver._CALL) + len(DIGESTS)) + len(saver._FLAGS)


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    settings = {each.name for each in dataclasses.fields(deeppart.Config)}
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) - set(PERMISSIONS) == settings
    example = re.search(r"with every key of this version:\n\n```toml\n(.*?)```", text, flags=re.DOTALL)
    assert example and set(re.findall(r"^(?:# |\[)?(\w+)(?: =|\])", example[1], flags=re.MULTILINE)) >= settings
    told = re.search(r"Ranks may differ in(.*?)\n\n", text, flags=re.DOTALL)
    assert told and set(re.findall(r"`(\w+)`", told[1])) == OF_EACH_RANK
