"""What is measured, as it travels to the ranks that measure it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from deeppart.model import LEVELS

#: What may be done after a checkpoint.
NOTHING, TRAIN, RESTORE, LOSE = "nothing", "train", "restore", "lose"


@dataclass(frozen=True, slots=True)
class SaveTask:
    """Real checkpoints of equal tensors.

    Attributes:
        nbytes: of the state.
        tensors: how many, of equal length.
        local: true if there is a local level.
        persistent: true if checkpoints go to the persistent level.
        rounds: checkpoints that count.
        flush_bandwidth: of the node, in bytes per second, or None; see ``Config``.
        capture: "eager" or "lazy"; see ``Config``.
        compression: see ``Config``.
        nodes: true for a node for each rank; otherwise they share one.
        partner: true for copies on another node.
        parity_group: nodes of a parity group, of which one may be lost; 0 for none.
        after: what is done after each checkpoint: "nothing", "train" (and how long that takes is measured), "restore",
            or "lose" (a node's files, and then restore).
    """

    nbytes: int
    tensors: int
    local: bool = True
    persistent: bool = False
    rounds: int = 5
    flush_bandwidth: float | None = None
    capture: str = "eager"
    compression: str = "none"
    nodes: bool = False
    partner: bool = False
    parity_group: int = 0
    after: str = NOTHING

    @property
    def levels(self) -> tuple[str, ...]:
        """To which the checkpoints go."""
        on = (self.local, self.partner, self.parity_group > 0, self.persistent)
        return tuple(level for level, is_on in zip(LEVELS, on, strict=True) if is_on)


@dataclass(frozen=True, slots=True)
class Tasks:
    """All that one job measures.

    Attributes:
        saves: one after the other, each in directories of its own.
        local_dir: on the node's own storage.
        persistent_dir: on the file system.
        dtypes: that the codec is timed on; with any, the other single operations are timed too.
    """

    saves: tuple[SaveTask, ...]
    local_dir: str
    persistent_dir: str
    dtypes: tuple[str, ...] = ()


def tasks_json(tasks: Tasks) -> str:
    """The tasks as JSON text."""
    return json.dumps(asdict(tasks))


def read_tasks(text: str) -> Tasks:
    """Inverse of :func:`tasks_json`."""
    document = json.loads(text)
    saves = tuple(SaveTask(**each) for each in document.pop("saves"))
    return Tasks(saves=saves, dtypes=tuple(document.pop("dtypes")), **document)
