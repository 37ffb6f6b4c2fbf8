"""What a job has measured of its steps, on all the sizes that it has had: kept, fitted, and in a file.

Rank 0 of a job, which has the persistent directory, writes ``deeppart-profile.json`` there, atomically; who reads it
needs no lock. What it says bears on advice alone, so a job that cannot write it goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deeppart.errors import ConfigError, CorruptFileError
from deeppart.extension import ForeignFile, write_file
from deeppart.plan.goodput import Bounds, Goodput, GradientNoise, Limits, Measured, Throughput, fit

#: Name of the file, in the persistent directory, and what is in it (docs/format.md).
PROFILE_NAME = "deeppart-profile.json"
FORMAT, VERSION = "deeppart-profile", 1
#: Kinds of steps that are kept; more are no profile.
MOST_TIMES = 10_000
_MOST = 1 << 40
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Steps of one kind, and how long they took.

    Attributes:
        nodes, ranks: of the job then.
        local_batch: samples of the largest micro-batch of a rank.
        accumulating: true of micro-batches after which gradients are not exchanged.
        count: how many.
        mean_s: seconds of one.

    Raises:
        ConfigError: a number is impossible.

    Example:
        >>> from deeppart.elastic.profile import TimedSteps
        >>> TimedSteps(nodes=1, ranks=4, local_batch=32, accumulating=False, count=10, mean_s=0.061).kind
        (1, 4, 32, False)
    """

    nodes: int
    ranks: int
    local_batch: int
    accumulating: bool
    count: int
    mean_s: float

    def __post_init__(self) -> None:
        numbers = (self.nodes, self.ranks, self.local_batch, self.count)
        whole = all(type(number) is int and 1 <= number < _MOST for number in numbers)
        if not (whole and self.nodes <= self.ranks and math.isfinite(self.mean_s) and self.mean_s > 0):
            raise ConfigError(
                "a measured step is impossible",
                expected="whole numbers from 1 on, no more nodes than ranks, and a time above 0",
                found=repr(self),
            )

    @property
    def kind(self) -> tuple[int, int, int, bool]:
        """What it is a mean over."""
        return self.nodes, self.ranks, self.local_batch, self.accumulating

    def joined(self, other: TimedSteps) -> TimedSteps:
        """The mean over both, of the same kind."""
        count = self.count + other.count
        return replace(self, count=count, mean_s=(self.mean_s * self.count + other.mean_s * other.count) / count)


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured steps, the noise of gradients, and what a batch may be.

    Attributes:
        times: one for each kind of step, in their order.
        largest_batch: samples of all ranks together, of the largest step that was measured; 0 before the first.
        noise: as it was last; None if it was not measured.
        bounds: of batches; None if the job has one batch and keeps it.

    Example:
        >>> from deeppart.elastic.profile import Profile, TimedSteps
        >>> first = Profile((TimedSteps(1, 4, 32, accumulating=False, count=1, mean_s=0.06),), largest_batch=128)
        >>> both = first.merged(Profile((TimedSteps(1, 4, 32, accumulating=False, count=1, mean_s=0.08),), 128))
        >>> [(timed.count, round(timed.mean_s, 3)) for timed in both.times]
        [(2, 0.07)]
        >>> Profile.from_document(both.document()) == both
        True
    """

    times: tuple[TimedSteps, ...] = ()
    largest_batch: int = 0
    noise: GradientNoise | None = None
    bounds: Bounds | None = None

    def merged(self, newer: Profile) -> Profile:
        """What both have measured; noise and bounds are those of the newer one, if it has any."""
        return Profile(
            _joined([*self.times, *newer.times]),
            max(self.largest_batch, newer.largest_batch),
            newer.noise or self.noise,
            newer.bounds or self.bounds,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks with which steps were measured, ascending."""
        return tuple(sorted({timed.ranks for timed in self.times}))

    @property
    def limits(self) -> Limits:
        """How far one may say anything.

        Raises:
            ConfigError: nothing was measured.
        """
        if not self.times:
            raise ConfigError("the profile of this job is empty", todo="train for some steps first")
        return Limits(self.ranks[-1], self.largest_batch, max(math.ceil(t.ranks / t.nodes) for t in self.times))

    def measured(self) -> list[Measured]:
        """The times as a fit takes them."""
        found: dict[tuple[int, int, int], dict[bool, float]] = {}
        for timed in self.times:
            found.setdefault(timed.kind[:3], {})[timed.accumulating] = timed.mean_s
        return [Measured(*kind, times.get(False), times.get(True)) for kind, times in found.items()]

    def document(self) -> dict[str, Any]:
        """The profile as JSON has it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "largest_batch": self.largest_batch,
            "noise": None if self.noise is None else asdict(self.noise),
            "bounds": None if self.bounds is None else asdict(self.bounds),
            "times": [asdict(timed) for timed in self.times],
        }

    @classmethod
    def from_document(cls, document: Any) -> Profile:
        """The profile of such a document.

        Raises:
            ValueError, KeyError, TypeError, ConfigError: this is not what the library has written.
        """
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError("it has another format or version")
        times, largest = document["times"], document["largest_batch"]
        if type(times) is not list or len(times) > MOST_TIMES or type(largest) is not int or not 0 <= largest < _MOST:
            raise ValueError("its times or its largest batch are impossible")
        read = [_timed(record) for record in times]
        if len(read) != len({timed.kind for timed in read}):
            raise ValueError("it has two times for one kind of step")
        noise, bounds = document["noise"], document["bounds"]
        return cls(
            _joined(read),
            largest,
            None if noise is None else GradientNoise(float(noise["sqr"]), float(noise["var"]), _whole(noise["batch"])),
            None if bounds is None else _bounds(bounds),
        )


def goodput_of(profile: Profile, near: Throughput | None = None) -> tuple[Goodput, Bounds]:
    """Goodput, by the throughput model nearest to the times, and what the batch may be.

    A job whose noise was not measured, or that has no bounds, keeps its batch: all its samples are worth the same.

    Args:
        profile: of the job.
        near: the model of an earlier fit, from which this one is found sooner.

    Raises:
        ConfigError: nothing was measured, or scipy is missing.
    """
    throughput = fit(profile.measured(), near)
    if not profile.largest_batch:
        raise ConfigError("the profile of this job has no batch", todo="train for some steps first")
    if profile.noise is None or profile.bounds is None:
        batch = profile.largest_batch if profile.bounds is None else profile.bounds.batch
        most_local = batch if profile.bounds is None else profile.bounds.most_local
        return Goodput(throughput, GradientNoise(1.0, 0.0, batch)), Bounds(batch, batch, most_local)
    return Goodput(throughput, profile.noise), profile.bounds


def write_profile(directory: Path, profile: Profile) -> None:
    """Write a profile into a persistent directory, over the one that is there.

    Raises:
        StorageError: the operating system refused.
    """
    write_file(directory / PROFILE_NAME, json.dumps(profile.document(), indent=1).encode() + b"\n")


def read_profile(directory: Path) -> Profile | None:
    """The profile of a persistent directory; None if there is none.

    Raises:
        FormatError: the file is damaged, or of another version.
        StorageError: it cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from deeppart.elastic.profile import Profile
        >>> from deeppart.elastic.profile import read_profile, write_profile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_profile(Path(directory), Profile(largest_batch=128))
        ...     read_profile(Path(directory)).largest_batch
        128
    """
    path = directory / PROFILE_NAME
    try:
        return Profile.from_document(json.loads(ForeignFile.read_all(path, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError, ConfigError) as error:
        raise CorruptFileError(
            "the profile of a job cannot be used", found=f"{type(error).__name__}: {error}", where=str(path),
            todo="remove it: the next run of the job measures again",
        ) from error  # fmt: skip


def _joined(times: Iterable[TimedSteps]) -> tuple[TimedSteps, ...]:
    found: dict[tuple[int, int, int, bool], TimedSteps] = {}
    for timed in times:
        before = found.get(timed.kind)
        found[timed.kind] = timed if before is None else before.joined(timed)
    return tuple(found[kind] for kind in sorted(found))


def _timed(record: Mapping[str, Any]) -> TimedSteps:
    if type(record["accumulating"]) is not bool:
        raise TypeError("accumulating is no bool")
    nodes, ranks, local_batch = record["nodes"], record["ranks"], record["local_batch"]
    return TimedSteps(nodes, ranks, local_batch, record["accumulating"], record["count"], float(record["mean_s"]))


def _bounds(record: Mapping[str, Any]) -> Bounds:
    if type(record["accumulate"]) is not bool:
        raise TypeError("accumulate is no bool")
    batch, most_batch = _whole(record["batch"]), _whole(record["most_batch"])
    most_local, least_local = _whole(record["most_local"]), _whole(record["least_local"])
    return Bounds(batch, most_batch, most_local, least_local, record["accumulate"])


def _whole(value: Any) -> int:
    if type(value) is not int or not 1 <= value < _MOST:
        raise TypeError("a number of samples is no whole number from 1 on")
    return value
