"""Parts that do not hold what their documents say are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeppart.errors import CorruptFileError
from deeppart.part import FLAG_PER_RANK
from deeppart.recovery.saved import check_spans
from deeppart.recovery.tables import PartIndexView, share_tables
from tests.unit.cli_support import forge
from tests.unit.recovery.opened import Opened, open_step


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Of three ranks: leaf 0 lies in all parts, leaf 1 in the first, leaf 2 is each rank's own."""
    forge(tmp_path, 4)
    return open_step(tmp_path)


def of_leaf(index: PartIndexView, leaf: int) -> np.ndarray:
    these: np.ndarray = index.pieces.spans["leaf"] == leaf
    return these


def check(opened: Opened, part: int = -1, spans: Any = None) -> None:
    """As one rank does it that leads all parts, of which one has another table."""
    if spans is not None:
        opened.recovered.mine[part].reader.spans = spans
    tables = share_tables(opened.ranks, opened.recovered, opened.documents.structure)
    check_spans(opened.saved, tables, opened.recovered, 0)


@pytest.mark.parametrize("leaf", [0, 1, 2])
def test_a_leaf_of_which_a_part_lacks_its_bytes(opened: Opened, leaf: int) -> None:
    check(opened)
    index = opened.indexes[0]
    spans = index.pieces.spans[~of_leaf(index, leaf)]
    with pytest.raises(CorruptFileError, match=f"of leaf {leaf}") as caught:
        check(opened, 0, spans)
    assert str(caught.value.where).startswith("step 4")


def test_chunks_that_are_marked_otherwise(opened: Opened) -> None:
    reader = opened.recovered.mine[1].reader
    reader.chunks = reader.chunks.copy()
    reader.chunks["flags"] ^= FLAG_PER_RANK
    with pytest.raises(CorruptFileError, match="in a chunk that is marked otherwise"):
        check(opened)


def test_a_leaf_that_no_document_describes(opened: Opened) -> None:
    spans = opened.indexes[0].pieces.spans.copy()
    spans["leaf"][of_leaf(opened.indexes[0], 1)] = 3
    with pytest.raises(CorruptFileError, match="structure document lacks"):
        check(opened, 0, spans=spans)
