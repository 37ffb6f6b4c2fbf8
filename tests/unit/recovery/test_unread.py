"""Whether what was read of a step is enough for a live state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.recovery.apply import lacks_bytes, wanted_pieces
from deeppart.recovery.tables import UNREAD, fetch_spans
from deeppart.state.capture import layout
from deeppart.state.pieces import ANY_PART
from tests.unit.recovery.opened import open_step
from tests.unit.sharded_states import rows, save

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    """A leaf in each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 64)
        yield


def state(rank: int, ranks: int, scale: float) -> dict[str, Any]:
    x = (torch.arange(18.0).view(9, 2) + 1) * scale
    tied = x + 1
    return {"plain": x + 2, "sharded": rows(x + 3, rank, ranks), "first": tied, "second": tied}


@pytest.mark.parametrize("left_out", ["plain", "sharded", "second", None])
@pytest.mark.parametrize("saving", [1, 2])
def test_each_chunk_that_was_not_read(tmp_path: Path, saving: int, left_out: str | None) -> None:
    save(tmp_path, [state(rank, saving, 1.0) for rank in range(saving)])
    opened = open_step(tmp_path)
    matched = opened.matched(state(0, 1, 0.0))
    wanted = wanted_pieces(matched)
    tables = fetch_spans(opened.ranks, opened.tables, wanted.of(ANY_PART), "fetching")
    assert not lacks_bytes(wanted, tables)
    numbers = {path[0]: number for number, path in enumerate(matched.target.structure.array_paths()) if path}
    if left_out is not None:
        matched.target.dropped |= {numbers[left_out]}
        matched.target.sharded.pop(numbers[left_out], None)
        wanted = wanted_pieces(matched)
    found: dict[str, set[bool]] = {}
    for place, index in enumerate(tables.indexes):
        for chunk in range(len(index.readers)):
            readers = index.readers.copy()
            readers[chunk] = UNREAD
            indexes = [*tables.indexes]
            indexes[place] = replace(index, readers=readers)
            (leaf,) = {piece.leaf for piece in index.pieces.of(chunk)}
            name = matched.saved.documents.structure.array_paths()[leaf][0]
            found.setdefault(name, set()).add(lacks_bytes(wanted, replace(tables, indexes=indexes)))
    names = {"plain", "sharded", "first"}
    assert found == {name: {name != left_out} for name in names}
