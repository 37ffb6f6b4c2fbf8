"""Failures of a job, class by class: drawn from a distribution, or read from a trace.

The classes are what dies together: a process (its node's storage survives), a node, a group of nodes (a switch or a
rack), and everything. Times between failures of a class are exponential or Weibull; the job as a whole has one stream
of failures per class with the rate of all its processes, nodes or groups together, and each failure strikes one of
them at random.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from deeppart.errors import ConfigError

from ..machine.record import Failures

#: What can fail, from the smallest to the largest.
CLASSES = ("process", "node", "group", "system")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure.

    Attributes:
        at_s: time since the job began.
        kind: one of CLASSES.
        nodes: that it strikes; one for a process, whose storage survives.
    """

    at_s: float
    kind: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the job.

    Attributes:
        ranks, nodes: processes, and nodes that they run on.
    """

    ranks: int
    nodes: int


def rates_per_s(failures: Failures, size: Size) -> dict[str, float]:
    """Class -> failures of the job per second."""
    groups = group_count(size.nodes, failures.group_nodes)
    return {
        "process": size.ranks / failures.process,
        "node": size.nodes / failures.node,
        "group": groups / failures.group,
        "system": 1 / failures.system,
    }


def drawn(failures: Failures, size: Size, random: np.random.Generator) -> Iterator[Failure]:
    """Failures in order of time, without end; nothing if there are none."""
    streams = []
    for kind, rate in rates_per_s(failures, size).items():
        if rate > 0:
            (child,) = random.spawn(1)
            streams.append(_stream(kind, rate, failures, size, child))
    yield from heapq.merge(*streams, key=lambda failure: failure.at_s)


def _stream(kind: str, rate: float, failures: Failures, size: Size, random: np.random.Generator) -> Iterator[Failure]:
    """Failures of one class. A Weibull distribution is scaled so that its mean is 1 / rate."""
    scale = 1 / (rate * math.gamma(1 + 1 / failures.shape))
    at_s = 0.0
    while True:
        at_s += scale * float(random.weibull(failures.shape))
        yield Failure(at_s, kind, _struck(kind, failures, size, random))


def _struck(kind: str, failures: Failures, size: Size, random: np.random.Generator) -> tuple[int, ...]:
    if kind == "system":
        return tuple(range(size.nodes))
    if kind == "group":
        groups = group_count(size.nodes, failures.group_nodes)
        return nodes_of_group(int(random.integers(groups)), size.nodes, failures.group_nodes)
    return (int(random.integers(size.nodes)),)


def group_count(nodes: int, group_nodes: int) -> int:
    """Groups of nodes that fail together; the last may be smaller."""
    return -(-nodes // group_nodes)


def nodes_of_group(group: int, nodes: int, group_nodes: int) -> tuple[int, ...]:
    """The nodes of one of them."""
    first = group * group_nodes
    return tuple(range(first, min(first + group_nodes, nodes)))


def read_trace(path: Path, size: Size) -> tuple[Failure, ...]:
    """Failures from a CSV file with the columns ``at_s``, ``kind`` and ``nodes`` (numbers separated by blanks).

    ``nodes`` may be empty for "system". Lines must be in order of time.

    Raises:
        ConfigError: the file cannot be read, or a line is impossible; the message names the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None or not {"at_s", "kind"} <= set(reader.fieldnames):
                raise _refusal(path, 1, f"the columns {reader.fieldnames}", "the columns at_s, kind and nodes")
            failures = [_from_row(row, path, number, size) for number, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            "cannot read the trace", found=str(error), where=str(path), todo="correct the file"
        ) from error
    for number, (earlier, later) in enumerate(pairwise(failures), start=3):
        if later.at_s < earlier.at_s:
            raise _refusal(path, number, f"at_s = {later.at_s:g} after {earlier.at_s:g}", "times in ascending order")
    return tuple(failures)


def _from_row(row: dict[str, str | None], path: Path, number: int, size: Size) -> Failure:
    try:
        at_s = float(row["at_s"] or "")
    except ValueError:
        at_s = math.nan
    if not (math.isfinite(at_s) and at_s >= 0):
        raise _refusal(path, number, f"at_s = {row['at_s']!r}", "seconds since the job began, at least 0")
    kind = (row["kind"] or "").strip()
    if kind not in CLASSES:
        raise _refusal(path, number, f"kind = {row['kind']!r}", "one of " + ", ".join(CLASSES))
    if kind == "system":
        return Failure(at_s, kind, tuple(range(size.nodes)))
    words = (row.get("nodes") or "").split()
    numbers = [int(word) for word in words if word.isdigit()]
    if not words or len(numbers) < len(words) or max(numbers) >= size.nodes or (kind != "group" and len(words) > 1):
        allowed = f"node numbers from 0 to {size.nodes - 1}" + ("" if kind == "group" else ", just one")
        raise _refusal(path, number, f"nodes = {row.get('nodes')!r}", allowed)
    return Failure(at_s, kind, tuple(sorted(set(numbers))))


def _refusal(path: Path, line: int, found: str, expected: str) -> ConfigError:
    return ConfigError(
        "a line of the trace is impossible",
        expected=expected,
        found=found,
        where=f"{path}, line {line}",
        todo="correct the line; docs/simulator.md has the format",
    )
