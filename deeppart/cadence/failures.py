"""Estimates the rate of failures that need each level: a prior for clusters in general, corrected by the failures of
this job. Pure.

The prior: a node fails as in the training of Llama 3 (A. Grattafiori et al., The Llama 3 Herd of Models, 2024, section
3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs, eight in a node), and the job as a whole ends early every
other day (assumed: time limits, preemption, mistakes), after which nothing may be left on nodes.

The prior has the weight of one observed failure. If it expects E failures in the runs so far, and F were observed, the
mean of a Gamma distribution with shape 1 + F and rate 1 + E multiplies all rates by (1 + F) / (1 + E). A Dirichlet
distribution that starts from the prior's shares divides the total among the levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from deeppart.model import LEVELS, Level

_DAY_S = 86_400.0
#: Mean time between failures of one node: 54 days of 2,048 nodes, with 419 interruptions.
NODE_MTBF_S = 54 * _DAY_S * 2048 / 419
#: Share of node failures that lose the node's storage (assumed).
NODE_LOST_SHARE = 2 / 3
#: The same for the job as a whole, of any size (assumed).
JOB_MTBF_S = 2 * _DAY_S


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job.

    Attributes:
        seconds: known duration.
        nodes: number of nodes.
        failed: true if it ended too early.
        needed: level from which the next run was restored; None if unknown.
    """

    seconds: float
    nodes: int
    failed: bool = False
    needed: str | None = None


def guessed_rates(nodes: int) -> dict[str, float]:
    """The prior: level -> failures per second that need it; "partner" includes parity."""
    of_nodes = nodes / NODE_MTBF_S
    return {
        Level.LOCAL: of_nodes * (1 - NODE_LOST_SHARE),
        Level.PARTNER: of_nodes * NODE_LOST_SHARE,
        Level.PERSISTENT: 1 / JOB_MTBF_S,
    }


def failure_rates(nodes: int, levels: Collection[str], runs: Sequence[Run] = ()) -> dict[str, float]:
    """Failures per second that need each level."""
    guess = guessed_rates(nodes)
    total = sum(guess.values())
    failed = Counter(_class_of(run.needed) for run in runs if run.failed)
    # Without calling guessed_rates for each of thousands of runs: the prior is linear in the nodes.
    node_s = sum(run.seconds * run.nodes for run in runs)
    expected = node_s / NODE_MTBF_S + sum(run.seconds for run in runs) / JOB_MTBF_S
    factor = (1 + failed.total()) / (1 + expected)
    shares = {name: (rate / total + failed[name]) / (1 + failed.total()) for name, rate in guess.items()}
    return _met_by(levels, {name: total * factor * share for name, share in shares.items()})


#: Level from which a run was restored -> the rate for which its failure counts; others count for the highest level.
_CLASSES: dict[str | None, str] = {
    Level.LOCAL: Level.LOCAL,
    Level.PARTNER: Level.PARTNER,
    Level.PARITY: Level.PARTNER,
}


def _class_of(needed: str | None) -> str:
    """The rate for which a failure counts."""
    return _CLASSES.get(needed, Level.PERSISTENT)


def _met_by(levels: Collection[str], rates: Mapping[str, float]) -> dict[str, float]:
    on = [level for level in LEVELS if level in levels]
    found = dict.fromkeys(on, 0.0)
    for name, rate in rates.items():
        fitting = [level for level in on if LEVELS.index(level) >= LEVELS.index(name)]
        found[(fitting or on[-1:])[0]] += rate
    return found
