"""What a calibration can be asked for, as it travels between processes."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SaveTask:
    """Real checkpoints of equal tensors.

    Attributes:
        nbytes: of the state, which every rank holds alike.
        tensors: how many.
        local_dir: of the local level, or None for none.
        persistent_dir: of the persistent level.
        levels: to which the checkpoints go: "local", "persistent".
        rounds: checkpoints that count; two more come before them.
        flush_bandwidth: see ``Config``.
        capture: see ``Config``.
        compression: see ``Config``.
        restore: whether to measure coming back, too.
        timeout: seconds that a checkpoint may take.
    """

    nbytes: int
    tensors: int
    local_dir: str | None
    persistent_dir: str
    levels: tuple[str, ...]
    rounds: int = 5
    flush_bandwidth: float | None = None
    capture: str = "eager"
    compression: str = "none"
    restore: bool = False
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class PieceTask:
    """Single operations.

    Attributes:
        dtypes: that the codec is timed on.
        seconds: that each measurement takes about.
    """

    dtypes: tuple[str, ...]
    seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class Tasks:
    """All that one job measures."""

    saves: tuple[SaveTask, ...]
    pieces: PieceTask | None = None


def tasks_json(tasks: Tasks) -> str:
    """As text."""
    document = {
        "saves": [_fields(task) for task in tasks.saves],
        "pieces": None if tasks.pieces is None else _fields(tasks.pieces),
    }
    return json.dumps(document)


def read_tasks(text: str) -> Tasks:
    """Inverse of :func:`tasks_json`."""
    document = json.loads(text)
    saves = tuple(SaveTask(**{**each, "levels": tuple(each["levels"])}) for each in document["saves"])
    pieces = document["pieces"]
    return Tasks(saves, None if pieces is None else PieceTask(tuple(pieces["dtypes"]), pieces["seconds"]))


def _fields(record: SaveTask | PieceTask) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}
