"""A state that one rank cannot make."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.comm.base import Comm
from deeppart.errors import DeeppartError
from deeppart.interop.refusal import or_refusal
from deeppart.interop.training_state import pack
from tests.unit.sharded_states import checkpointer, on_ranks


def test_where_one_rank_cannot_make_its_state_all_hear_why(tmp_path: Path) -> None:
    def on_rank(comm: Comm) -> str:
        with checkpointer(tmp_path, comm) as ck:
            made = or_refusal(lambda: {"x": pack(object() if comm.rank else 1, "client_state")})
            with pytest.raises(DeeppartError, match="client_state") as told:
                ck.checkpoint(made, 1)
            ck.checkpoint({"x": 1}, 1)  # and may go on
        return type(told.value).__name__

    assert on_ranks(2, on_rank) == ["RemoteRankError", "UnsupportedLeafError"]
