"""Arrays that hold boxes of tensors, filled from what parts hold; parts that do not hold all of it are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.model.boxes import Box
from deeppart.part import OWN_TABLE, SHARED_TABLE, SPAN_DTYPE
from deeppart.state.document.whole import ShardSource, WholeTensor
from deeppart.state.restore.scatter import BoxScatter, LeafPiece, LiveBox, OwnSpans, check_bytes
from deeppart.state.tree.leaves import LeafType

KIND = LeafType("torch", "int32", (4, 6))
WHOLE = torch.arange(24, dtype=torch.int32).view(4, 6)
LEFT, RIGHT = Box((0, 0), (4, 2)), Box((0, 2), (4, 4))
Bytes = npt.NDArray[np.uint8]


def tensor(*sources: ShardSource) -> WholeTensor:
    return WholeTensor(KIND, "model/w", sources, None, 2)


#: The left columns in leaf 5 of part 0; the right ones in leaf 3 of parts 0 and 1, which have half of the bytes each.
SOUND = tensor(ShardSource(0, 5, LEFT), ShardSource(0, 3, RIGHT), ShardSource(1, 3, RIGHT))


def raw(box: Box) -> Bytes:
    return WHOLE[box.slices()].contiguous().view(-1).view(torch.uint8).numpy()


def fill(scatter: BoxScatter) -> None:
    """Give it two chunks of part 0, of two and one pieces, and one of part 1."""
    first = np.concatenate([np.zeros(8, dtype=np.uint8), raw(LEFT), raw(RIGHT)[:12]])
    scatter.write(0, LeafPiece(5, 0, 32, 8), first)
    scatter.write(0, LeafPiece(3, 0, 12, 40), first)
    scatter.write(0, LeafPiece(9, 0, 8, 0), first)
    scatter.write(0, LeafPiece(3, 12, 20, 0), raw(RIGHT)[12:32])
    scatter.write(1, LeafPiece(3, 32, 32, 4), np.concatenate([np.zeros(4, dtype=np.uint8), raw(RIGHT)[32:]]))


def test_each_array_gets_its_box() -> None:
    whole, column = torch.zeros(4, 6, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int32)
    rows = torch.zeros(6, 2, dtype=torch.int32).T
    nothing = torch.zeros(0, 6, dtype=torch.int32)
    boxes = [
        LiveBox.whole(whole),
        LiveBox(column, Box((1, 2), (3, 1))),
        LiveBox(nothing, Box((4, 0), (0, 6))),
        LiveBox(rows, Box((2, 0), (2, 6))),
    ]
    scatter = BoxScatter({7: (SOUND, boxes)})
    assert scatter.leaves(0) == {3, 5} and scatter.leaves(1) == {3} and not scatter.leaves(2)
    fill(scatter)
    assert torch.equal(whole, WHOLE) and torch.equal(column, WHOLE[1:, 2:3]) and torch.equal(rows, WHOLE[2:])


def test_memory_that_was_freed_is_not_written_to() -> None:
    live = torch.zeros(4, 6, dtype=torch.int32)
    scatter = BoxScatter({0: (SOUND, [LiveBox.whole(live)])})
    live.untyped_storage().resize_(0)
    with pytest.raises(FreedMemoryError, match="restored"):
        fill(scatter)


# --- parts that hold too little or too much ---------------------------------------------------------------------------


def spans(*rows: tuple[int, int, int, int]) -> npt.NDArray[np.void]:
    """(table, leaf, start, length)"""
    table = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for place, row in enumerate(rows):
        for name, value in zip(("table", "leaf", "start", "length"), row, strict=True):
            table[place][name] = value
    return table


def sound() -> list[list[tuple[int, int, int, int]]]:
    first = [(SHARED_TABLE, 3, 0, 40), (OWN_TABLE, 3, 20, 12), (OWN_TABLE, 3, 0, 20), (OWN_TABLE, 5, 0, 32)]
    return [first, [(OWN_TABLE, 3, 32, 32), (OWN_TABLE, 4, 0, 8)]]


def test_all_bytes_once_in_whatever_order() -> None:
    check_bytes(SOUND, [OwnSpans(spans(*part)) for part in sound()], "here")
    check_bytes(tensor(), [], "here")


Parts = list[list[tuple[int, int, int, int]]]
WRONG: dict[str, Callable[[Parts], object]] = {
    "a gap": lambda parts: parts[0].pop(1),
    "nothing of a shard": lambda parts: parts[0].pop(3),
    "nothing at the end": lambda parts: parts[1].pop(0),
    "twice": lambda parts: parts[1].append((OWN_TABLE, 3, 0, 20)),
    "an overlap": lambda parts: parts[1].append((OWN_TABLE, 3, 28, 8)),
    "beyond the end": lambda parts: parts[1].append((OWN_TABLE, 3, 64, 4)),
    "in the other table": lambda parts: parts[1].__setitem__(0, (SHARED_TABLE, 3, 32, 32)),
}


@pytest.mark.parametrize("name", WRONG)
def test_any_other_bytes_are_refused(name: str) -> None:
    parts = sound()
    WRONG[name](parts)
    with pytest.raises(CorruptFileError, match="every byte of a shard exactly once") as caught:
        check_bytes(SOUND, [OwnSpans(spans(*part)) for part in parts], "step 4")
    assert "model/w" in str(caught.value) and "step 4" in str(caught.value)
