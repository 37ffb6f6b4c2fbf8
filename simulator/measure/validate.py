"""The simulator against the library on this machine: real checkpoints under MPI, each predicted before.

Machines are not equally fast all the time, virtual ones least of all: several passes, each a calibration and then the
checkpoints that it predicts, tell how far the machine agrees with itself. Sizes and numbers of tensors are others than
those that were calibrated on. What is compared is what users feel: how long a call blocks, until a level is complete,
until a state is back, and how long the same training takes with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from deeppart.cli.calibrate.tasks import LOSE, RESTORE, TRAIN, SaveTask
from deeppart.errors import ConfigError
from deeppart.model import Level, meant_todo

from ..machine.record import Machine
from .predict import MOST_GROUP, predict
from .start import Directories, measure

#: What is to be reached: half of the errors, and all of them, as shares of what was measured.
MEDIAN_TARGET, WORST_TARGET = 0.05, 0.15
RANKS = (1, 2, 4)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Checkpoints of one kind."""

    kind: str  # in words
    task: SaveTask  # the checkpoints; how many, among how many ranks and in what parity groups is filled in
    what: tuple[str, ...]  # that is compared: names of what is measured
    least_ranks: int = 1  # it needs so many

    def on(self, ranks: int, rounds: int) -> SaveTask:
        """The checkpoints on so many ranks."""
        return replace(self.task, rounds=rounds, parity_group=min(ranks, MOST_GROUP) if self.task.parity_group else 0)


def _task(mebibytes: int, tensors: int, **how: Any) -> SaveTask:
    return SaveTask(mebibytes * _MIB, tensors, persistent=True, **how)


_PLAIN = ("blocked", Level.LOCAL, Level.PERSISTENT)
_BACK, _TRAINED = ("restore",), ("trained",)
CASES = (
    Case("plain", _task(256, 64), _PLAIN),
    Case("plain", _task(128, 2000), _PLAIN),
    Case("plain", _task(64, 16384), _PLAIN),
    Case("throttled", _task(128, 200, flush_bandwidth=150e6), _PLAIN),
    Case("lazy", _task(192, 100, capture="lazy"), _PLAIN),
    Case("compressed", _task(192, 100, compression="tensor"), _PLAIN),
    Case("training", _task(192, 100, after=TRAIN), _TRAINED),
    Case("restore", _task(192, 100, after=RESTORE), _BACK),
    Case("restore, compressed", _task(192, 100, compression="tensor", after=RESTORE), _BACK),
    Case("partner", _task(192, 100, nodes=True, partner=True), (*_PLAIN[:2], Level.PARTNER, _PLAIN[2]), 2),
    Case("lost node, partner", _task(192, 100, nodes=True, partner=True, after=LOSE), _BACK, 2),
    Case("parity", _task(192, 100, nodes=True, parity_group=4), (*_PLAIN[:2], Level.PARITY, _PLAIN[2]), 3),
    Case("lost node, parity", _task(192, 100, nodes=True, parity_group=4, after=LOSE), _BACK, 3),
    Case("lost node, persistent", _task(192, 100, nodes=True, after=LOSE), _BACK, 2),
)
QUICK_CASES = (
    Case("plain", _task(64, 64), _PLAIN),
    Case("plain", _task(16, 4096), _PLAIN),
    Case("throttled", _task(32, 200, flush_bandwidth=100e6), _PLAIN),
    Case("restore", _task(32, 100, after=RESTORE), _BACK),
    Case("partner", _task(32, 100, nodes=True, partner=True), (*_PLAIN[:2], Level.PARTNER, _PLAIN[2]), 2),
)
#: Of each session, and sessions.
ROUNDS, QUICK_ROUNDS = (3, 2), (4, 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number."""

    kind: str  # of the checkpoints, in words
    ranks: int  # ranks, nbytes, tensors: of what
    nbytes: int
    tensors: int
    flush_bandwidth: float | None  # of the node, or None
    what: str  # "blocked", a level, "restore" or "trained"
    predicted_s: float  # seconds; with several passes the median of their predictions
    measured_s: float  # median of all rounds
    least_s: float  # least_s, most_s: of the rounds
    most_s: float
    #: how far apart the middle half of the rounds lies, as a share of the median: two equal measurements often differ
    #: by so much
    spread: float = 0.0
    varied: float = 0.0  # how much longer the slowest pass measured than the fastest one, as a share; 0 with one pass

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; above 0 where it was too long."""
        return self.predicted_s / self.measured_s - 1

    @property
    def noise(self) -> float:
        """How far measurements of the same differ, as a share: between rounds, or between passes if that is more."""
        return max(self.spread, self.varied)


@dataclass(frozen=True, slots=True)
class Validation:
    """All numbers."""

    comparisons: tuple[Comparison, ...]  # of every case

    @property
    def median_error(self) -> float:
        """Of the errors, signs apart."""
        return median(abs(each.error) for each in self.comparisons)

    @property
    def worst_error(self) -> float:
        """The largest, sign apart."""
        return max(abs(each.error) for each in self.comparisons)

    @property
    def met(self) -> bool:
        """True if both targets are met."""
        return self.median_error <= MEDIAN_TARGET and self.worst_error <= WORST_TARGET

    @property
    def missed(self) -> tuple[Comparison, ...]:
        """Those with an error above what the worst may have, the largest first."""
        found = [each for each in self.comparisons if abs(each.error) > WORST_TARGET]
        return tuple(sorted(found, key=lambda each: -abs(each.error)))

    @property
    def of_the_model(self) -> tuple[Comparison, ...]:
        """Of those the ones whose error is larger than measurements of the same differ: it is the model's."""
        return tuple(each for each in self.missed if abs(each.error) > each.noise)


def validate(
    machine_for: Callable[[int], Machine],
    directories: Directories,
    ranks: Sequence[int] = RANKS,
    *,
    passes: int = 1,
    quick: bool = False,
    kinds: Collection[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Run and compare."""
    rounds, sessions = QUICK_ROUNDS if quick else ROUNDS
    cases = cases_of(kinds, quick=quick)
    found: dict[tuple[int, Case, str], list[tuple[float, list[float]]]] = {}
    for number in range(passes):
        for count in ranks:
            possible = [case for case in cases if case.least_ranks <= count]
            if not possible:
                continue
            machine = machine_for(count)
            of = f", pass {number + 1} of {passes}" if passes > 1 else ""
            progress(f"checkpoints: ranks: {count}{of}")
            tasks = [case.on(count, rounds) for case in possible]
            results = measure(count, tasks, directories, sessions=sessions)["saves"]
            for case, task, measured in zip(possible, tasks, results, strict=True):
                predicted = predict(machine, count, task, alone_s=median(measured["alone"]))
                for what in case.what:
                    found.setdefault((count, case, what), []).append((predicted[what], measured[what]))
    if not found:
        raise ConfigError(
            "nothing would be measured",
            expected="kinds that are possible with these ranks",
            found=", ".join(sorted({case.kind for case in cases})),
            where="--only",
            todo="take more --ranks",
        )
    return Validation(tuple(_comparison(*found_of, of_passes) for found_of, of_passes in found.items()))


def cases_of(kinds: Collection[str], *, quick: bool) -> tuple[Case, ...]:
    """The cases of some kinds, or all."""
    cases = QUICK_CASES if quick else CASES
    known = dict.fromkeys(case.kind for case in cases)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ConfigError(
            "there is no such kind of checkpoints",
            expected="; ".join(known),
            found=repr(unknown[0]),
            where="--only",
            todo=meant_todo(unknown[0], known, "leave --only out for all of them"),
        )
    return tuple(case for case in cases if not kinds or case.kind in kinds)


def _comparison(ranks: int, case: Case, what: str, found: Sequence[tuple[float, list[float]]]) -> Comparison:
    """Of what every pass predicted and measured."""
    rounds = [seconds for _, measured in found for seconds in measured]
    medians = [median(measured) for _, measured in found]
    return Comparison(
        case.kind,
        ranks,
        case.task.nbytes,
        case.task.tensors,
        case.task.flush_bandwidth,
        what,
        predicted_s=median(predicted for predicted, _ in found),
        measured_s=median(rounds),
        least_s=min(rounds),
        most_s=max(rounds),
        spread=_spread(rounds),
        varied=max(medians) / min(medians) - 1,
    )


def _spread(rounds: Sequence[float]) -> float:
    if len(rounds) < 2:
        return 0.0
    quarter, middle, three = quantiles(rounds, n=4, method="inclusive")
    return (three - quarter) / middle
