"""Makes the golden checkpoint of structure version 5: ``python -m tests.golden.make_structure_v5 DIRECTORY``.

``tests/golden/structure-v5/ckpt`` was made once and stays as it is: later versions of the library must read it. It has
every kind of value and object that came with that version, some of them not alike on two ranks, and some on one rank
alone. Its job's lock file was left out, and its home is /jobs/ckpt.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

from deeppart.state.tree import objects as registry
from deeppart.state.tree.objects import register
from tests.features.script_values import Phase, state
from tests.unit.sharded_states import save


class Meter:
    """Of a registered type."""

    def __init__(self, total: float = 0.0) -> None:
        self.total = total


def register_meter() -> None:
    """Registers it by the name that the file has, if it is not."""
    if registry.registered(Meter) is None:
        register(Meter, lambda meter: {"total": meter.total}, lambda data: Meter(**data), name="golden.Meter")


def make_states() -> list[dict[str, Any]]:
    """Of two ranks."""
    register_meter()
    states: list[dict[str, Any]] = []
    for rank in range(2):
        made = state(2)
        made["meter"] = Meter(2.5)
        made["own"] = {"set": {rank, "a"}, "phase": [Phase.WARMUP, Phase.TRAIN][rank]}
        made["apart"] = collections.deque([1, 2][: 1 + rank], maxlen=3)
        states.append(made)
    return states


if __name__ == "__main__":
    save(Path(sys.argv[1]), make_states(), step=9)
