"""What is at one path: which paths lead where, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import StructureMismatchError
from deeppart.offline.single import Found, read_single
from tests.unit.cli_support import save_states


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state: dict[Any, Any] = {
        "m": torch.nn.Linear(2, 3),
        "x[0]": torch.arange(3),
        "x0": torch.arange(4),
        "run": [{"n": i, "deep": [i, -i]} for i in range(300)],
        11: "int",
        "11": "str",
        "a/b": {"": None},
        "tie": torch.arange(6).reshape(2, 3),
    }
    state["tied"] = state["tie"].T
    return save_states(tmp_path_factory.mktemp("single"), state)


def contents(found: Found) -> list[tuple[str, Any]]:
    return [(each.path, content_of(each)) for each in found.leaves]


def content_of(item: Any) -> Any:
    return item.content if item.kind == "leaf" else item.value


@pytest.mark.parametrize(
    ("key", "path", "content"),
    [
        ("x[0]", "x[0]", [0, 1, 2]),  # the path itself comes before the glob, which means x0
        ("x?", "x0", [0, 1, 2, 3]),
        ("*wei*", "m/weight", None),
        ("tied", "tied", [[0, 3], [1, 4], [2, 5]]),
    ],
)
def test_leaves(root: Path, key: str, path: str, content: Any) -> None:
    found = read_single(root, key)
    ((name, array),) = contents(found)
    assert name == path and not found.is_container
    assert content is None or array.tolist() == content


@pytest.mark.parametrize(
    ("key", "summary", "text"),
    [
        ("11", "more than one", "found: 11, 11"),
        ("m/*", "more than one", "found: m/weight, m/bias"),
        ("m/wieght", "nothing at this path", "such as m/weight"),
        ("weight", "nothing at this path", "m/weight"),
        ("run/300", "nothing at this path", "paths"),
        ("run/7/n/0", "nothing at this path", "paths"),
        ("", "nothing at this path", "found: ''"),
    ],
)
def test_nothing_or_too_much(root: Path, key: str, summary: str, text: str) -> None:
    with pytest.raises(StructureMismatchError, match=summary) as caught:
        read_single(root, key)
    assert text in str(caught.value)
