"""What is at one path: which paths lead where, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, RestoreError, StructureMismatchError
from deeppart.offline.single import Found, read_single
from tests.unit.cli_support import flip, forge, make_state, part_path, save, save_states


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


def test_ranks(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    for rank in range(3):
        found = read_single(tmp_path, "rng", rank=rank).leaves[0]
        assert found.own and content_of(found).tolist() == [rank] * 16
        assert content_of(read_single(tmp_path, "position", rank=rank).leaves[0]) == 1000 + rank
    assert not read_single(tmp_path, "a").leaves[0].own
    with pytest.raises(RestoreError, match="no rank 3"):
        read_single(tmp_path, "rng", rank=3)


def test_damage_elsewhere_does_no_harm_and_here_nothing_is_returned(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip(part_path(tmp_path, 1), 4096 + 1000)
    refused = 0
    for key in ("model/weight", "moments/0", "noise"):
        try:
            ((_, array),) = contents(read_single(tmp_path, key))
        except CorruptFileError:
            refused += 1
            continue
        live: Any = make_state()
        for part in key.split("/"):
            live = live[int(part) if part.isdigit() else part]
        np.testing.assert_array_equal(np.asarray(array), np.asarray(live))
    assert refused == 1
