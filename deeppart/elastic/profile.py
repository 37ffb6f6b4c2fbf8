"""The profile of a job: measured step times on all its sizes, gradient noise and bounds of the batch size.

Rank 0 writes it atomically to ``deeppart-profile.json`` in the persistent directory, so readers need no lock. It is
used for advice only: a job that cannot write it continues.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Limits, Measured, Throughput, fit
from deeppart.errors import ConfigError, CorruptFileError
from deeppart.extension import ForeignFile

#: Name and format of the file (docs/format.md).
PROFILE_NAME = "deeppart-profile.json"
FORMAT, VERSION = "deeppart-profile", 1
#: Upper bounds of what is accepted from a file.
_MAX_TIMES = 10_000
_MAX_NUMBER = 1 << 40
_MAX_BYTES = 4 << 20
R = TypeVar("R", "TimedSteps", GradientNoise, Bounds)


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """The mean time of steps of one kind.

    Attributes:
        nodes, ranks: of the job.
        local_batch: samples of the largest micro-batch of a rank.
        accumulating: whether gradients were accumulated, and not reduced.
        count: number of steps.
        mean_s: seconds per step.

    Raises:
        ConfigError: a number is out of range.

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
        valid = all(type(number) is int and 1 <= number < _MAX_NUMBER for number in numbers)
        if not (valid and self.nodes <= self.ranks and math.isfinite(self.mean_s) and self.mean_s > 0):
            raise ConfigError(
                "invalid step times",
                expected="positive integers, no more nodes than ranks, and a positive time",
                found=repr(self),
            )

    @property
    def kind(self) -> tuple[int, int, int, bool]:
        """Nodes, ranks, local batch and whether it accumulates; steps of the same kind are averaged."""
        return self.nodes, self.ranks, self.local_batch, self.accumulating


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of a job.

    Attributes:
        times: one for each kind of step, sorted by kind.
        largest_batch: samples over all ranks of the largest measured step; 0 before the first.
        noise: the last estimate; None if it was not measured.
        bounds: of the batch size; None if it is fixed.

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
        """The measurements of both; noise and bounds of the newer one if it has any."""
        return Profile(
            _merge_times([*self.times, *newer.times]),
            max(self.largest_batch, newer.largest_batch),
            newer.noise or self.noise,
            newer.bounds or self.bounds,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Measured numbers of ranks, ascending."""
        return tuple(sorted({timed.ranks for timed in self.times}))

    @property
    def limits(self) -> Limits:
        """The range in which predictions are sensible.

        Raises:
            ConfigError: there are no measurements.
        """
        if not self.times:
            raise ConfigError("the profile of this job is empty", todo="train for some steps first")
        return Limits(self.ranks[-1], self.largest_batch, max(math.ceil(t.ranks / t.nodes) for t in self.times))

    def measured(self) -> list[Measured]:
        """The times as arguments of a fit."""
        found: dict[tuple[int, int, int], dict[bool, float]] = {}
        for timed in self.times:
            found.setdefault(timed.kind[:3], {})[timed.accumulating] = timed.mean_s
        return [Measured(*kind, times.get(False), times.get(True)) for kind, times in found.items()]

    def document(self) -> dict[str, Any]:
        """The profile as a JSON document."""
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
        """The profile in a JSON document.

        Raises:
            ValueError, KeyError, TypeError, ConfigError: the document is invalid.
        """
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError("another format or version")
        times, largest = document["times"], document["largest_batch"]
        if type(times) is not list or len(times) > _MAX_TIMES:
            raise ValueError("invalid times")
        if type(largest) is not int or not 0 <= largest < _MAX_NUMBER:
            raise ValueError("invalid largest batch")
        read = [_read(TimedSteps, record) for record in times]
        if len(read) != len({timed.kind for timed in read}):
            raise ValueError("two times for one kind of step")
        noise, bounds = document["noise"], document["bounds"]
        return cls(
            _merge_times(read),
            largest,
            None if noise is None else _read(GradientNoise, noise),
            None if bounds is None else _read(Bounds, bounds),
        )


def goodput_of(profile: Profile, last_fit: Throughput | None = None) -> tuple[Goodput, Bounds]:
    """Goodput by the throughput model fitted to the times, and the bounds of the batch size.

    Without noise or bounds the batch size is fixed, and all samples count the same.

    Args:
        profile: of the job.
        last_fit: the result of an earlier fit, as a starting point.

    Raises:
        ConfigError: there are no measurements, or scipy is missing.
    """
    throughput = fit(profile.measured(), last_fit)
    if not profile.largest_batch:
        raise ConfigError("the profile of this job has no batch", todo="train for some steps first")
    if profile.noise is None or profile.bounds is None:
        batch = profile.largest_batch if profile.bounds is None else profile.bounds.batch
        most_local = batch if profile.bounds is None else profile.bounds.most_local
        return Goodput(throughput, GradientNoise(1.0, 0.0, batch)), Bounds(batch, batch, most_local)
    return Goodput(throughput, profile.noise), profile.bounds


def write_profile(directory: Path, profile: Profile) -> None:
    """Write or replace the profile in a persistent directory.

    Raises:
        StorageError: the operating system refused.
    """
    ForeignFile.write(directory / PROFILE_NAME, json.dumps(profile.document(), indent=1).encode() + b"\n")


def read_profile(directory: Path) -> Profile | None:
    """The profile in a persistent directory; None if there is none.

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
        return Profile.from_document(json.loads(ForeignFile.read_all(path, _MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError, ConfigError) as error:
        raise CorruptFileError(
            "the profile of a job is invalid", found=f"{type(error).__name__}: {error}", where=str(path),
            todo="remove it: the next run of the job measures again",
        ) from error  # fmt: skip


def _merge_times(times: Iterable[TimedSteps]) -> tuple[TimedSteps, ...]:
    """Average times of the same kind."""
    found: dict[tuple[int, int, int, bool], TimedSteps] = {}
    for new in times:
        old = found.get(new.kind)
        if old is not None:
            count = old.count + new.count
            new = replace(old, count=count, mean_s=(old.mean_s * old.count + new.mean_s * new.count) / count)
        found[new.kind] = new
    return tuple(found[kind] for kind in sorted(found))


def _read(kind: type[R], record: Mapping[str, Any]) -> R:
    """A record, whose fields are positive integers, flags and other numbers."""
    values = {each.name: record[each.name] for each in fields(kind)}
    for each in fields(kind):
        value = values[each.name]
        if each.type == "float":
            values[each.name] = float(value)
        elif type(value).__name__ != each.type or (each.type == "int" and not 1 <= value < _MAX_NUMBER):
            raise TypeError(f"{each.name} is {value!r}")
    return kind(**values)
