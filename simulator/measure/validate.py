"""Compares the simulator with the library on this machine: real checkpoints under MPI, each predicted before.

The speed of a machine varies, most of all that of a virtual one. Several passes, each with a calibration and the
checkpoints that it predicts, show by how much. Sizes and numbers of tensors differ from those of the calibration. What
users notice is compared: for how long a call blocks, when a level is complete, how long a restore takes, and how long
the same training takes with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from deeppart.errors import ConfigError
from deeppart.model import Level, meant_todo

from ..machine.record import Machine
from .predict import MOST_GROUP, predict
from .start import Directories, measure
from .tasks import LOSE, RESTORE, TRAIN, SaveTask

#: Targets for the median and the largest relative error.
MEDIAN_TARGET, WORST_TARGET = 0.05, 0.15
RANKS = (1, 2, 4)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Checkpoints of one kind."""

    kind: str  # in words
    task: SaveTask  # without rounds and parity group, which :meth:`on` sets
    what: tuple[str, ...]  # names of the measurements to compare
    least_ranks: int = 1

    def on(self, ranks: int, rounds: int) -> SaveTask:
        """The checkpoints on this number of ranks."""
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
#: Rounds of each session, and number of sessions.
ROUNDS, QUICK_ROUNDS = (3, 2), (4, 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A predicted and a measured time."""

    kind: str  # of the checkpoints, in words
    ranks: int  # ranks, nbytes, tensors: of the checkpoint
    nbytes: int
    tensors: int
    flush_bandwidth: float | None  # limit of the node, or None
    what: str  # "blocked", a level, "restore" or "trained"
    predicted_s: float  # median of the passes
    measured_s: float  # median of all rounds
    least_s: float  # least_s, most_s: of the rounds
    most_s: float
    spread: float = 0.0  # interquartile range of the rounds / median
    varied: float = 0.0  # slowest pass / fastest pass - 1; 0 with one pass

    @property
    def error(self) -> float:
        """Relative error of the prediction; above 0 if it was too long."""
        return self.predicted_s / self.measured_s - 1

    @property
    def noise(self) -> float:
        """Relative difference between equal measurements: between rounds, or between passes if that is larger."""
        return max(self.spread, self.varied)


@dataclass(frozen=True, slots=True)
class Validation:
    """The comparisons of all cases."""

    comparisons: tuple[Comparison, ...]

    @property
    def median_error(self) -> float:
        """Median of the absolute errors."""
        return median(abs(each.error) for each in self.comparisons)

    @property
    def worst_error(self) -> float:
        """Largest absolute error."""
        return max(abs(each.error) for each in self.comparisons)

    @property
    def met(self) -> bool:
        """True if both targets are met."""
        return self.median_error <= MEDIAN_TARGET and self.worst_error <= WORST_TARGET

    @property
    def missed(self) -> tuple[Comparison, ...]:
        """The comparisons with an error above :data:`WORST_TARGET`, the largest first."""
        found = [each for each in self.comparisons if abs(each.error) > WORST_TARGET]
        return tuple(sorted(found, key=lambda each: -abs(each.error)))

    @property
    def of_the_model(self) -> tuple[Comparison, ...]:
        """Those of :attr:`missed` whose error exceeds the noise of the measurement, and so is the model's."""
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
    """Run the checkpoints, and compare them with predictions."""
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
    """The cases of the given kinds; all if there are none."""
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
    """Compare the predictions and measurements of all passes."""
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
