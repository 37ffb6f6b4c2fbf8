"""Trainings on a shared cluster: the measured speed of each on any placement, and workloads of submitted jobs.

Measurements and workloads are AdaptDL's (branch osdi21-artifact, in ``adaptdl.zip``), or the user's in the same layout:

    traces/APPLICATION/placements.csv       placement,local_bsz,step_time,sync_time
    traces/APPLICATION/scalability.csv      num_nodes,num_replicas,local_bsz,step_time,sync_time
    traces/APPLICATION/validation-BATCH.csv progress,iteration,metric,grad_sqr,grad_var
    WORKLOADS/NAME.csv                      name,time,application,num_replicas,batch_size

Times are interpolated between batches, and for placements that were not measured, between numbers of nodes and GPUs.
The unit of progress is a step with the first batch. A training ends after a number of epochs.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import ConfigError
from deeppart.model import Level

from ..campaign.failures import pieces_s
from ..machine.record import PIECES, Machine
from ..timing.restores import restore_s
from ..timing.stages import Job, Protection, times_of
from ..workload.states import read_state

Floats = npt.NDArray[np.float64]
Placement = tuple[int, ...]
#: Most nodes that were measured; their times are used for more nodes.
_MOST_NODES = 16


class Settings(NamedTuple):
    """What AdaptDL's artifact specifies for a training besides its measurements."""

    epochs: int  # length of the training
    most_local: int | None = None  # most samples of a GPU's micro-batch; None for the largest measured number
    most_gpus: int | None = None  # most GPUs, for policies that choose the number
    batch: int | None = None  # batch under Pollux, which otherwise chooses one
    #: the state in its checkpoints, in the syntax of ``--state``; assumed from the models that the paper names
    state: str = "tensors-160x1.3MB"


SETTINGS: Mapping[str, Settings] = {
    "bert": Settings(2, state="bert-base+adam"),
    "cifar10": Settings(100, state="tensors-124x720kB"),  # ResNet-18, SGD with momentum
    "ncf": Settings(10, most_gpus=1, batch=32768, state="tensors-40x1MB"),  # NeuMF of MovieLens-1M, Adam
    "imagenet": Settings(90, state="tensors-322x636kB"),  # ResNet-50, SGD with momentum
    "deepspeech2": Settings(80, state="tensors-100x3MB"),  # about 40 M parameters, SGD with momentum
    "yolov3": Settings(50, most_local=8, state="tensors-444x1.1MB"),  # 62 M parameters, SGD with momentum
}


class Times(NamedTuple):
    """Seconds of a micro-batch with the exchange of gradients, and of this exchange alone."""

    step_s: float
    sync_s: float


class Timing(NamedTuple):
    """A row of measured times."""

    placement: Placement | None  # GPUs on each node; None if the row is not for one placement
    nodes: int
    gpus: int
    local_batch: int
    times: Times


@dataclass(frozen=True)
class Course:
    """The course of a training with one batch: one value for each epoch."""

    progress: Floats  # progress at the end of the epoch, in steps with the first batch
    iteration: Floats  # steps until then
    sqr: Floats  # sqr, var: those of :class:`deeppart.elastic.goodput.GradientNoise`, of the first batch
    var: Floats


@dataclass(frozen=True)
class Application:
    """One kind of training."""

    name: str
    timings: Sequence[Timing]
    courses: Mapping[int, Course]  # by batch, ascending
    settings: Settings
    least_local: int  # least_local, most_local: samples of a GPU's micro-batch
    most_local: int
    _known: dict[tuple[Placement, int], Times] = field(default_factory=dict, repr=False)

    @property
    def batch(self) -> int:
        """The first batch, for which the training was tuned."""
        return min(self.courses)

    @property
    def most_batch(self) -> int:
        """The largest measured batch."""
        return max(self.courses)

    def progress(self, epoch: int) -> float:
        """Progress after ``epoch`` epochs: the least of all batches."""
        return 0.0 if epoch == 0 else min(float(each.progress[epoch - 1]) for each in self.courses.values())

    def iterations(self, batch: int, epoch: int) -> float:
        """Steps with this batch until the end of epoch number ``epoch``."""
        return self._between("iteration", batch, epoch)

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of gradients for the first batch, in a training with this batch."""
        return self._between("sqr", batch, epoch), self._between("var", batch, epoch)

    def times(self, placement: Placement, local_batch: int) -> Times:
        """Times of a micro-batch."""
        key = _rotated(placement), local_batch
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._interpolated(*key)
        return found

    def _between(self, name: str, batch: int, epoch: int) -> float:
        sizes = list(self.courses)
        if not sizes[0] <= batch <= sizes[-1]:
            raise ConfigError(
                f"a batch of {self.name} was not measured", expected=f"{sizes[0]} to {sizes[-1]}", found=str(batch)
            )
        return float(np.interp(batch, sizes, [getattr(course, name)[epoch] for course in self.courses.values()]))

    def _interpolated(self, placement: Placement, local_batch: int) -> Times:
        rows = [timing for timing in self.timings if timing.placement == placement]
        if rows:
            sizes = [row.local_batch for row in rows]
            if min(sizes) <= local_batch <= max(sizes):
                both = np.array([row.times for row in rows])
                return Times(*(float(np.interp(local_batch, sizes, both[:, each])) for each in (0, 1)))
        else:
            point = min(len(placement), _MOST_NODES), sum(placement), local_batch
            found = _surface(self)(np.array([point]))[0]
            if np.all(np.isfinite(found)):
                return Times(float(found[0]), float(found[1]))
        raise ConfigError(
            f"{self.name} was not measured like this",
            found=f"{local_batch} samples of each GPU, on nodes with {', '.join(map(str, placement))} of them",
        )

    def __hash__(self) -> int:
        return id(self)


@lru_cache(maxsize=64)
def _surface(application: Application) -> Callable[[Floats], Floats]:
    """Times as a function of nodes, GPUs and batch: means over all placements of a size."""
    from scipy.interpolate import LinearNDInterpolator

    groups: dict[tuple[int, int, int], list[Times]] = {}
    single = []
    for row in application.timings:
        point = row.nodes, row.gpus, row.local_batch
        if row.placement is None:
            single.append((point, row.times))
        else:
            groups.setdefault(point, []).append(row.times)
    means = [(point, tuple(np.mean(groups[point], axis=0))) for point in sorted(groups)]
    points, values = zip(*means, *single, strict=True)
    found: Callable[[Floats], Floats] = LinearNDInterpolator(np.array(points, dtype=float), np.array(values))
    return found


def _rotated(placement: Placement) -> Placement:
    """The least of all rotations, which are equivalent on a ring."""
    kept = tuple(count for count in placement if count)
    return min(kept[start:] + kept[:start] for start in range(len(kept)))


def packed(gpus: int, per_node: int) -> Placement:
    """The placement of GPUs on as few nodes as possible."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def divided(batch: int, gpus: int, application: Application) -> tuple[int, int]:
    """(samples of a micro-batch, number of accumulated micro-batches before the last) for a batch on some GPUs."""
    per_gpu = math.ceil(batch / gpus - 1e-8)
    accumulation = math.ceil(per_gpu / application.most_local - 1e-8) - 1
    if gpus == 1 and batch > application.batch:  # estimating gradient noise needs several micro-batches
        accumulation = max(1, accumulation)
    local = math.ceil(per_gpu / (accumulation + 1) - 1e-8)
    return min(local, application.most_batch // (gpus * (accumulation + 1))), accumulation


def read_application(archive: Archive, name: str) -> Application:
    """Read an application."""
    folder = f"traces/{name}/"
    try:
        tables = (archive.table(f"{folder}{each}.csv") for each in ("placements", "scalability"))
        timings, courses = [_timing(row) for table in tables for row in table], {}
        for path in archive.names:
            if path.startswith(f"{folder}validation-"):
                courses[int(path.rpartition("-")[2].removesuffix(".csv"))] = _course(archive.table(path))
        settings = SETTINGS.get(name) or Settings(min(len(course.progress) for course in courses.values()))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "the tables of an application say nothing", found=f"{type(error).__name__}: {error}",
            where=f"{archive.name}: {folder}", todo="docs/simulator.md has the layout",
        ) from error  # fmt: skip
    locals_ = [timing.local_batch for timing in timings if timing.placement is not None]
    most_local = settings.most_local or max(locals_)
    return Application(name, timings, dict(sorted(courses.items())), settings, min(locals_), most_local)


def _timing(row: Mapping[str, str]) -> Timing:
    times = Times(float(row["step_time"]), float(row["sync_time"]))
    if "placement" not in row:
        return Timing(None, int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"]), times)
    placement = tuple(map(int, row["placement"]))
    return Timing(placement, len(placement), sum(placement), int(row["local_bsz"]), times)


def _course(rows: Sequence[Mapping[str, str]]) -> Course:
    names = ("progress", "iteration", "grad_sqr", "grad_var")
    return Course(*(np.array([float(row[name]) for row in rows]) for name in names))


@dataclass(frozen=True)
class Request:
    """A row of a workload."""

    name: str  # of the job
    submitted_s: float  # since the beginning
    application: Application
    gpus: int  # gpus, batch: requested by its user
    batch: int


# --- workloads --------------------------------------------------------------------------------------------------------


def read_workload(archive: Archive, name: str, known: dict[str, Application]) -> list[Request]:
    """Read the jobs of a workload, in order."""
    found = []
    for number, row in enumerate(archive.table(name)):
        try:
            application = row["application"]
            if application not in known:
                known[application] = read_application(archive, application)
            numbers = float(row["time"]), int(row["num_replicas"]), int(row["batch_size"])
        except (ValueError, KeyError) as error:
            raise ConfigError(
                "a row of a workload says nothing", found=f"{type(error).__name__}: {error}",
                where=f"{archive.name}: {name}, row {number + 1}",
            ) from error  # fmt: skip
        submitted_s, gpus, batch = numbers
        found.append(Request(row["name"], submitted_s, known[application], gpus, batch))
    if len({request.name for request in found}) < len(found):
        raise ConfigError("two jobs of a workload have the same name", where=f"{archive.name}: {name}")
    return found


# --- archives ---------------------------------------------------------------------------------------------------------


#: The trace that is part of the simulator.
SHIPPED = "adaptdl"
#: Limit for the size of a table.
_MOST_BYTES = 64 << 20


class Archive:
    """The tables of a trace."""

    def __init__(self, where: str | Path = SHIPPED) -> None:
        self.name = str(where)
        path = Path(str(resources.files(__package__) / "adaptdl.zip")) if self.name == SHIPPED else Path(where)
        try:
            self._root: Path | zipfile.Path = path if path.is_dir() else zipfile.Path(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(
                "there is no such trace", expected=f"a folder, a zip archive, or {SHIPPED!r}",
                found=f"{path}: {error}", where="--trace", todo="docs/simulator.md has the layout",
            ) from error  # fmt: skip
        self.names = tuple(sorted(_tables(self._root)))

    def workloads(self, name: str) -> list[str]:
        """The names of the workloads in a folder, or of a single one."""
        wanted = name.removesuffix(".csv").rstrip("/")
        found = [each for each in self.names if each == f"{wanted}.csv" or each.rpartition("/")[0] == wanted]
        folders = sorted({each.rpartition("/")[0] for each in self.names if not each.startswith("traces/")})
        if not found or wanted.startswith("traces/"):
            raise ConfigError(
                "there is no such workload", expected=f"a CSV file, or a folder of them: {', '.join(folders)}",
                found=repr(name), where=self.name,
            )  # fmt: skip
        return found

    def table(self, name: str) -> list[Mapping[str, str]]:
        """The rows of a table."""
        if name not in self.names:
            raise ConfigError("a trace lacks a table", expected=name, found="no such file", where=self.name)
        try:
            with self._root.joinpath(name).open("rb") as file:
                text = file.read(_MOST_BYTES).decode("utf-8")
            rows: list[Mapping[str, str]] = list(csv.DictReader(io.StringIO(text)))
        except (UnicodeDecodeError, csv.Error, zipfile.BadZipFile, OSError) as error:
            where = f"{self.name}: {name}"
            raise ConfigError("a table of a trace cannot be read", found=str(error), where=where) from error
        if not rows or any(None in row or None in row.values() for row in rows):
            raise ConfigError("a table of a trace is empty, or its rows differ", where=f"{self.name}: {name}")
        return rows


def _tables(folder: Path | zipfile.Path, within: str = "") -> Iterator[str]:
    """The CSV files in a folder, recursively."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _tables(each, f"{within}{each.name}/")
        elif each.name.endswith(".csv"):
            yield within + each.name


# --- restarts ---------------------------------------------------------------------------------------------------------


#: GPUs of the job whose restart is estimated: about the mean of the published workloads.
_RANKS = 8


def restarts_s(machine: Machine, per_node: int, applications: Iterable[Application]) -> dict[str, float]:
    """Application -> seconds from the last checkpoint call until it trains again on other nodes."""
    return {each.name: _seconds(machine, per_node, each) for each in applications}


def _seconds(machine: Machine, per_node: int, application: Application) -> float:
    state = read_state(application.settings.state)
    job = Job(state, machine, _RANKS, per_node, protection=Protection(local=True, partner=False))
    shares = job.shares()
    saved_s = times_of(job, shares).complete()[Level.PERSISTENT]
    # As after the failure of a process, without the time until it is noticed.
    pieces = pieces_s(machine.restart, _RANKS, {"process"})
    started_s = sum(seconds for piece, seconds in pieces.items() if piece != PIECES[0])
    return saved_s + started_s + restore_s(job, shares, {Level.PERSISTENT: job.nodes})
