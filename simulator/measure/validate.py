"""The simulator against the library on this machine: real checkpoints under MPI, each predicted before.

Machines are not equally fast all the time, virtual ones least of all: several passes, each a calibration and then the
checkpoints that it predicts, tell how far the machine agrees with itself.

Measured are sizes and numbers of tensors that were not calibrated on, eager, uncompressed, to the node's storage and
to the file system, freely and throttled; held alike by all ranks, or divided among them. What is compared is what users
feel: how long a call blocks, and how long it takes until a level is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from deeppart.cli.calibrate.tasks import SaveTask
from deeppart.errors import ConfigError

from ..machine.record import Machine
from ..timing.stages import Job, Protection, times_of
from ..workload.layout import Layout
from ..workload.states import read_state
from .start import Directories, measure

#: What is to be reached: half of the errors, and all of them, as shares of what was measured.
MEDIAN_TARGET, WORST_TARGET = 0.10, 0.25
RANKS = (1, 2, 4)
REPLICATED = Layout()
#: What is compared: how long the call blocks, and until a level is complete.
WHAT = ("blocked", "local", "persistent")
#: (bytes of the state, tensors, bytes per second that one node may flush, or None).
CASES = (
    (256 << 20, 64, None),
    (128 << 20, 2000, None),
    (64 << 20, 16384, None),
    (128 << 20, 200, 150e6),
)
QUICK_CASES = ((64 << 20, 64, None), (16 << 20, 4096, None), (32 << 20, 200, 100e6))
ROUNDS, QUICK_ROUNDS = 7, 4


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number.

    Attributes:
        ranks, nbytes, tensors: of what.
        flush_bandwidth: of the node, or None.
        what: "blocked", "local" or "persistent".
        predicted_s: seconds; with several passes the median of their predictions.
        measured_s: median of all rounds.
        least_s, most_s: of the rounds.
        varied: how much longer the slowest pass measured than the fastest one, as a share; 0 with one pass.
    """

    ranks: int
    nbytes: int
    tensors: int
    flush_bandwidth: float | None
    what: str
    predicted_s: float
    measured_s: float
    least_s: float
    most_s: float
    varied: float = 0.0

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; above 0 where it was too long."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Validation:
    """All numbers.

    Attributes:
        comparisons: of every case.
    """

    comparisons: tuple[Comparison, ...]

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


def validate(
    machine_for: Callable[[int], Machine],
    directories: Directories,
    ranks: Sequence[int] = RANKS,
    *,
    layout: Layout = REPLICATED,
    passes: int = 1,
    quick: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Run and compare.

    Args:
        machine_for: number of ranks -> this machine, calibrated for so many on the node; asked before every pass.
        layout: of the states.
        passes: how often all is done.

    Raises:
        ConfigError: no mpirun; a layout that does not fit, or that cannot be measured. DeeppartError: the ranks failed.
    """
    shards = {count: shards_of(layout, count) for count in ranks}
    cases, rounds = (QUICK_CASES, QUICK_ROUNDS) if quick else (CASES, ROUNDS)
    found: dict[tuple[int, SaveTask, str], list[tuple[float, list[float]]]] = {}
    for number in range(passes):
        for count in ranks:
            machine = machine_for(count)
            of = f", pass {number + 1} of {passes}" if passes > 1 else ""
            progress((f"{count} ranks" if count > 1 else "one rank") + of)
            saves = _saves(cases, rounds, shards[count])
            for save, measured in zip(saves, measure(count, saves, directories)["saves"], strict=True):
                predicted = predict(machine, count, save, layout)
                for what in WHAT:
                    found.setdefault((count, save, what), []).append((predicted[what], measured[what]))
    return Validation(tuple(_comparison(*found_of, of_passes) for found_of, of_passes in found.items()))


def shards_of(layout: Layout, ranks: int) -> int:
    """Among how many ranks a layout divides each of the tensors that are measured.

    Raises:
        ConfigError: it does not fit, or is not one of fsdp, hsdp=N and tp=N.
    """
    grid = layout.at(ranks)
    if grid.stages > 1 or grid.expert > 1 or grid.optimizer_sharded or (grid.shards > 1 and grid.tensor > 1):
        raise ConfigError(
            "this layout cannot be measured",
            expected="fsdp, hsdp=N or tp=N",
            found=str(layout),
            where="--layout",
            todo="take one of these, or none: every rank then holds all tensors",
        )
    return grid.shards * grid.tensor


def _saves(cases: Sequence[tuple[int, int, float | None]], rounds: int, shards: int) -> list[SaveTask]:
    return [
        SaveTask(nbytes, tensors, persistent=True, rounds=rounds, flush_bandwidth=flush, shards=shards)
        for nbytes, tensors, flush in cases
    ]


def _comparison(ranks: int, save: SaveTask, what: str, found: Sequence[tuple[float, list[float]]]) -> Comparison:
    """Of what every pass predicted and measured."""
    rounds = [seconds for _, measured in found for seconds in measured]
    medians = [median(measured) for _, measured in found]
    return Comparison(
        ranks,
        save.nbytes,
        save.tensors,
        save.flush_bandwidth,
        what,
        predicted_s=median(predicted for predicted, _ in found),
        measured_s=median(rounds),
        least_s=min(rounds),
        most_s=max(rounds),
        varied=max(medians) / min(medians) - 1,
    )


def predict(machine: Machine, ranks: int, save: SaveTask, layout: Layout = REPLICATED) -> dict[str, float]:
    """The simulator's prediction for such checkpoints: blocked, local, persistent, in seconds."""
    state = replace(read_state(f"tensors-{save.tensors}x{save.nbytes // save.tensors // 4 * 4}"), layout=layout)
    job = Job(
        state=state,
        machine=machine,
        ranks=ranks,
        ranks_per_node=ranks,
        capture=save.capture,
        protection=Protection(partner=False),
        flush_bandwidth=float("inf") if save.flush_bandwidth is None else save.flush_bandwidth,
    )
    times = times_of(job, state.shares(ranks, kappa=machine.memory.kappa_bytes))
    return {"blocked": times.blocked_s} | times.complete()
