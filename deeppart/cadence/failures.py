"""The rate at which each level will be needed: an estimate for clusters in general, corrected by what this job has
seen. Pure.

Before anything is known, a node fails as in the training of Llama 3 (A. Grattafiori et al., The Llama 3 Herd of
Models, 2024, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs, eight in a node), and the job as a
whole ends early every other day (assumed: time limits, preemption, mistakes), after which nothing may be left on nodes.

The guess counts as one failure seen. Let E be how many failures it expects of the runs so far and F how many there
were: by the mean of a Gamma distribution of shape 1 + F and rate 1 + E, all rates are (1 + F) / (1 + E) times the
guess; and levels share them as a Dirichlet distribution says that began with the guessed shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from deeppart.model import LEVELS, Level

_DAY_S = 86_400.0
#: For one node: 54 days of 2,048 nodes, with 419 interruptions.
NODE_MTBF_S = 54 * _DAY_S * 2048 / 419
#: Share of node failures that lose the node's storage (assumed).
NODE_LOST_SHARE = 2 / 3
#: For the job as a whole, whatever its size (assumed).
JOB_MTBF_S = 2 * _DAY_S


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job.

    Attributes:
        seconds: that it is known to have lasted.
        nodes: that it had.
        failed: true if it ended too early.
        needed: the level from which the next run came back; None where nothing is known.
    """

    seconds: float
    nodes: int
    failed: bool = False
    needed: str | None = None


def guessed_rates(nodes: int) -> dict[str, float]:
    """Level -> failures per second that need it, before any was observed; "partner" includes parity."""
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
    # The prior is linear in the nodes; needed for each decision, over thousands of runs.
    node_s = sum(run.seconds * run.nodes for run in runs)
    expected = node_s / NODE_MTBF_S + sum(run.seconds for run in runs) / JOB_MTBF_S
    factor = (1 + failed.total()) / (1 + expected)
    shares = {name: (rate / total + failed[name]) / (1 + failed.total()) for name, rate in guess.items()}
    return _met_by(levels, {name: total * factor * share for name, share in shares.items()})


#: Level from which a run was restored -> the class of its failure; all others count for the highest level.
_CLASSES: dict[str | None, str] = {
    Level.LOCAL: Level.LOCAL,
    Level.PARTNER: Level.PARTNER,
    Level.PARITY: Level.PARTNER,
}


def _class_of(needed: str | None) -> str:
    """The estimated rate to which a failure is counted; if it is unknown, that of the highest level."""
    return _CLASSES.get(needed, Level.PERSISTENT)


def _met_by(levels: Collection[str], rates: Mapping[str, float]) -> dict[str, float]:
    on = [level for level in LEVELS if level in levels]
    found = dict.fromkeys(on, 0.0)
    for name, rate in rates.items():
        fitting = [level for level in on if LEVELS.index(level) >= LEVELS.index(name)]
        found[(fitting or on[-1:])[0]] += rate
    return found
