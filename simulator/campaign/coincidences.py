"""Losses that come together: a node is lost while another one's files have not been rebuilt yet.

A copy survives the loss of its node, not that of the partner as well. So of the failures that need a level on the
nodes, a share needs a higher level: those that strike while the storage that this level needs is already gone.

Lost storage is out until the job has come back and what was lost is rebuilt, which takes W seconds where nothing
strikes meanwhile. Every failure begins that anew, and when it is over all is whole at once. So failures come in *rows*
that are less than W apart: with failures at a rate r, one is followed by another in its row with the probability
q = 1 - exp(-r W). Each takes a given node with the same probability, and how many nodes are out is followed from one
to the next, as a Markov chain: one that is struck again has nothing more to lose, and a level that survives t losses of
g nodes fails with one more. There the row is over for this level, and where a failure needs a higher one anyway: the
job has come back from there, and everything is rebuilt. Counted are the failures that find it whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from deeppart.model import Level

from ..timing.bandwidth_sharing import FloatArray
from ..timing.stages import Protection
from .survival import Placement, placement

#: Failures of a row that come with a smaller probability are not looked at, nor those after so many.
_LEAST, _LONGEST = 1e-7, 2_000


@dataclass(frozen=True, slots=True)
class Rows:
    """How failures follow one another before everything is rebuilt.

    Attributes:
        again: the probability that one more comes, q above.
        takes: the share of failures that take the storage of a given node, f above.
        needing: the share of failures that need a level on the nodes other than a node's own.
        beyond: the share that needs a higher one, whatever has been lost before.
    """

    again: float
    takes: float
    needing: float = 1.0
    beyond: float = 0.0


def again(rate: float, undisturbed_s: float) -> float:
    """The probability that the next failure comes before everything is rebuilt."""
    return -math.expm1(-rate * undisturbed_s)


def share_beyond(
    level: str, struck: Sequence[int], nodes: int, rows: Rows, protection: Protection, domain_nodes: int
) -> float:
    """The share of failures striking these nodes that a level on the nodes does not survive, though it would alone."""
    places = placement(tuple(range(nodes)), protection, domain_nodes)
    these, usual = (_concerned(places, level, each, protection.parity_tolerate) for each in (struck, struck[:1]))
    return _share_of_rows(these, usual, rows)


@dataclass(frozen=True, slots=True)
class _Ring:
    """Copies, along a ring of nodes of which no two neighbours are out.

    Attributes:
        nodes: on it.
        partners: with copies of what is struck, or whose copies that has.
    """

    nodes: int
    partners: int

    def begin(self, longest: int) -> list[FloatArray]:
        """The probabilities that so many are out, where none is yet."""
        return [_none_of(1 + min(longest, self.nodes // 2))]

    def step(self, out: list[FloatArray], takes: float) -> list[FloatArray]:
        """The same after one more failure, of a row that goes on."""
        (before,) = out
        count = np.arange(len(before))
        others = np.maximum(self.nodes - count, 0)
        hit = np.minimum(1.0, takes * others)  # groups take several nodes at once: more than one on average
        fresh = hit * self._spared(count, 2)
        after = before * (1 - hit)
        after[1:] += (before * fresh)[:-1]
        return [after]

    def fails(self, out: list[FloatArray]) -> float:
        """The share of failures, striking these nodes, that are not survived."""
        (chances,) = out
        count = np.arange(len(chances))
        beyond = (1 - count / self.nodes) * (1 - self._spared(count, self.partners))
        whole = float(chances.sum())  # of rows that are not over
        return float((chances * beyond).sum()) / whole if whole else 1.0

    def _spared(self, count: npt.NDArray[np.int_], partners: int) -> FloatArray:
        """The probability that so many partners of one that is not out are not out either: all sets of so many nodes
        without neighbours are as probable.
        """
        left = (np.maximum(self.nodes - count - place, 1e-9) for place in range(partners))
        return math.prod((np.clip(1 - count / each, 0.0, 1.0) for each in left), start=np.ones(len(count)))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of parity.

    Attributes:
        sizes: members, and how many of them are struck, of each group that is.
        tolerate: of a group so many may be out.
    """

    sizes: tuple[tuple[int, int], ...]
    tolerate: int

    def begin(self, longest: int) -> list[FloatArray]:
        """For each group float64[out of those that are struck, out of the others], where none is yet."""
        del longest
        return [_none_of(1 + lost, 1 + self.tolerate) for _, lost in self.sizes]

    def step(self, out: list[FloatArray], takes: float) -> list[FloatArray]:
        """The same after one more failure, of a row that goes on."""
        found = []
        for (members, lost), before in zip(self.sizes, out, strict=True):
            struck, others = np.indices(before.shape)
            hits, misses = takes * (lost - struck), takes * np.maximum(members - lost - others, 0)
            most = np.maximum(1.0, hits + misses)
            hits, misses = hits / most, misses / most
            after = before * (1 - hits - misses)
            after[1:] += (before * hits)[:-1]
            after[:, 1:] += (before * misses)[:, :-1]
            found.append(np.where(struck + others <= self.tolerate, after, 0.0))
        return found

    def fails(self, out: list[FloatArray]) -> float:
        """The share of failures, striking these nodes, that are not survived."""
        stays = 1.0
        for (_, lost), chances in zip(self.sizes, out, strict=True):
            others = np.indices(chances.shape)[1]
            whole = float(chances.sum())  # of rows that are not over
            stays *= float(chances[lost + others <= self.tolerate].sum()) / whole if whole else 0.0
        return 1 - stays


def _concerned(places: Placement, level: str, struck: Sequence[int], tolerate: int) -> _Ring | _Groups:
    """What of a level is concerned by the loss of some nodes."""
    if level == Level.PARTNER:
        return _Ring(len(places.partner), len(_partners(places, struck)))
    groups = Counter(places.group[place] for place in struck)
    return _Groups(tuple(sorted((len(members), lost) for members, lost in groups.items())), tolerate)


@lru_cache(maxsize=4096)
def _share_of_rows(these: _Ring | _Groups, usual: _Ring | _Groups, rows: Rows) -> float:
    """The share of failures that find all whole, and are not survived."""
    if rows.again >= 1:  # nothing is ever rebuilt
        return 1.0
    longest = 1 if not rows.again else min(_LONGEST, 2 + math.ceil(math.log(_LEAST) / math.log(rows.again)))
    out, others = these.begin(longest), usual.begin(longest)
    reached, beyond, counted = 1.0, 0.0, 0.0
    for _ in range(longest):
        beyond, counted = beyond + reached * these.fails(out), counted + reached
        reached *= rows.again * max(0.0, 1 - rows.needing * usual.fails(others) - rows.beyond)
        if reached < _LEAST * counted:
            break
        out, others = these.step(out, rows.takes), usual.step(others, rows.takes)
    return beyond / counted


def _none_of(*shape: int) -> FloatArray:
    found = np.zeros(shape)
    found.flat[0] = 1.0
    return found


def _partners(places: Placement, struck: Sequence[int]) -> set[int]:
    """Nodes with copies of these nodes' parts, and those whose copies these have."""
    gone = set(struck)
    keepers = {places.partner[place] for place in struck}
    return (keepers | {place for place, keeper in enumerate(places.partner) if keeper in gone}) - gone
