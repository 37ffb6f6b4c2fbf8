"""Makes the golden checkpoint of structure version 4: ``python -m tests.golden.make_structure_v4 DIRECTORY``.

``tests/golden/structure-v4/ckpt`` was made once and stays as it is: later versions of the library must read it. It has
sharded tensors, and tensors that are made of others. Its job's lock file was left out, and its home is /jobs/ckpt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from deeppart.model import Box
from tests.unit.sharded_states import piece, rows, save

#: Sharded by rows; held by both ranks; of rank 1 alone, beside a plain tensor that is so, too.
ROWS, BOTH, STAGE = (torch.arange(count * 3.0).view(count, 3) for count in (5, 4, 2))
SPARSE = torch.sparse_coo_tensor(
    torch.tensor([[2, 0, 2], [1, 1, 1]]), torch.tensor([1.0, -0.0, 2.5]), (3, 2), check_invariants=True
)


def make_states() -> list[dict[str, Any]]:
    """Of two ranks."""
    states: list[dict[str, Any]] = []
    for rank in range(2):
        mine = rows(ROWS, rank, 2)
        both = piece(BOTH, Box.whole((4, 3)))
        model: dict[str, Any] = {"rows": mine, "tied": mine, "both": both, "half": rows(ROWS.half(), rank, 2)}
        states.append({"model": model, "plain": torch.arange(7), "sparse": SPARSE.clone(), "step": 9})
    states[1]["model"] |= {"stage": piece(STAGE, Box.whole((2, 3))), "buffer": torch.arange(3)}
    return states


if __name__ == "__main__":
    save(Path(sys.argv[1]), make_states(), step=9)
