"""What all ranks know of the parts: tables as they were written, in part order, and the document of part 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import deeppart
from tests.unit.cli_support import forge
from tests.unit.recovery.opened import Opened, open_step


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """A step of three ranks, all of whose parts this process has read."""
    forge(tmp_path, 4)
    return open_step(tmp_path)


def test_the_tables_are_those_of_the_files(opened: Opened) -> None:
    assert [index.part for index in opened.indexes] == [0, 1, 2]
    for index in opened.indexes:
        reader = opened.recovered.mine[index.part].reader
        assert index.readers == [0] * len(index.lengths)
        assert (index.spans == reader.spans).all()
        assert index.lengths == reader.chunks["raw_length"].tolist()
        assert index.starts == reader.raw_starts[:-1].tolist()
        assert sum(index.lengths) == reader.raw_bytes
        assert any(index.per_rank)  # the generator, which is each rank's own


def test_the_document_is_that_of_part_0(opened: Opened) -> None:
    assert opened.tables.document == opened.recovered.mine[0].reader.meta


def test_a_process_alone_has_no_copies_of_mates(opened: Opened) -> None:
    assert opened.tables.copies.mine == {}


def test_a_part_without_a_byte(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint({"empty": torch.zeros(0), "number": 3}, 1).wait()
    opened = open_step(tmp_path)
    (index,) = opened.indexes
    assert sum(index.lengths) == 0 and len(index.starts) == len(index.lengths)
    state = {"empty": torch.zeros(0), "number": 0}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        assert ck.restore(state) == 1
    assert state["number"] == 3 and np.asarray(state["empty"]).size == 0
