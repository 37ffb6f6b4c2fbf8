"""The tasks of a calibration, as they travel between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from deeppart.model import Level


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
        restore: true to measure restores too.
        shards: ranks, next to each other, that divide each tensor; with 1, every rank holds all of it.
    """

    nbytes: int
    tensors: int
    local: bool = True
    persistent: bool = False
    rounds: int = 5
    flush_bandwidth: float | None = None
    capture: str = "eager"
    restore: bool = False
    shards: int = 1

    @property
    def levels(self) -> tuple[str, ...]:
        """To which the checkpoints go."""
        return tuple(level for level in (Level.LOCAL, Level.PERSISTENT) if getattr(self, level))


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
