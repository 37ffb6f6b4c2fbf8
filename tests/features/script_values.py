"""A state as scripts have it: one of every kind of value and object, in each other; and its classes."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import types
import uuid
from typing import Any

import torch


class Phase(enum.Enum):
    WARMUP = "w"
    TRAIN = ("t", 2)
    OTHER = [1]  # noqa: RUF012  # no value that is stored: its name is enough


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    weights: Any = None
    tags: list[Any] = dataclasses.field(default_factory=list)
    made: Any = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.posts = getattr(self, "posts", 0) + 1  # no field; and restoring runs none of this


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    steps: int = 1
    mask: Any = None


def values(seed: int) -> dict[str, Any]:
    """Of everything that is replaced as a whole."""
    zone = datetime.timezone(datetime.timedelta(hours=seed), "here")
    return {
        "path": pathlib.Path("/a") / str(seed),
        "pure": pathlib.PurePosixPath(f"b/{seed}"),
        "windows": pathlib.PureWindowsPath(f"c:\\{seed}"),
        "phase": [Phase.WARMUP, Phase.TRAIN, Phase.OTHER][seed % 3],
        "level": Level.HIGH if seed else Level.LOW,
        "rights": Rights.READ | Rights.WRITE if seed else Rights(0),
        "mode": Mode.FAST,
        "at": datetime.datetime(2026, 1, 1 + seed, 2, 3, 4, 5, tzinfo=zone, fold=1),
        "naive": datetime.datetime(2026, 1, 1 + seed),
        "date": datetime.date(2026, 2, 1 + seed),
        "time": datetime.time(3, seed, tzinfo=datetime.UTC),
        "delta": datetime.timedelta(days=-seed, microseconds=7),
        "zone": zone,
        "decimal": decimal.Decimal(f"-0.{seed}0E+9"),
        "fraction": fractions.Fraction(seed, 7),
        "uuid": uuid.UUID(int=seed),
        "range": range(seed, 10**30, 3),
        "slice": slice(None, seed, ...),
        "ellipsis": ...,
        "version": torch.__version__,
        "frozen": frozenset({seed, "a", (1, frozenset({Phase.WARMUP}))}),
        "many": [Phase.WARMUP if seed else Phase.TRAIN] * 12,
        "table": {pathlib.PurePosixPath(str(number)): Level.HIGH for number in range(seed, seed + 300)},
    }


def containers(seed: int) -> dict[str, Any]:
    """Of everything that stays the object that it is."""
    counts: Any = collections.defaultdict(list, {"x": [seed]})
    stream = io.BytesIO(bytes([seed] * (2 + seed)))
    stream.seek(seed)
    settings = Settings(seed / 2, torch.full((3,), float(seed)), [seed, {"deep": [seed]}])
    settings.made = seed
    return {
        "namespace": argparse.Namespace(rate=seed, settings=settings, w=torch.ones(2) * seed),
        "simple": types.SimpleNamespace(a=[seed]),
        "settings": Settings(seed, torch.arange(3) * seed),
        "set": {seed, "a", None, (1, seed)},
        "sets": [{seed, number} for number in range(9)],
        "deque": collections.deque([seed, torch.ones(2) * seed, [seed]], maxlen=9),
        "window": collections.deque(range(seed, seed + 20), maxlen=20),
        "counts": counts,
        "words": collections.defaultdict(int, {str(number): number + seed for number in range(300)}),
        "stream": stream,
        "octets": bytearray([seed] * 3),
        "keys": {
            Phase.TRAIN: torch.ones(1) * seed,
            Level.LOW: seed,
            pathlib.PurePosixPath("p"): seed,
            frozenset({"a", "b", "c"}): seed,
            (Phase.WARMUP, 1): seed,
            datetime.date(2026, 1, 1): seed,
            None: seed,
        },
    }


def state(seed: int) -> dict[str, Any]:
    """All of them, and what is replaced in one of its own."""
    return {"values": values(seed), "in place": containers(seed), "plan": Plan(seed, torch.ones(2) * seed)}
