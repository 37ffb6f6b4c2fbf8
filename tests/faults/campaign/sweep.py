"""Every storage operation of a small job refused, one after another: scenarios for ``--every``. Pure.

Scenarios for each phase, directory, rank, error and duration. Their lives refuse one operation after another; each
begins with the restore that judges the one before.
"""

from __future__ import annotations

import itertools

from tests.faults.campaign.records import ERRORS, LEVELS, OPERATIONS, FileFault, Leaf, Life, Scenario, StorageFault

#: In place of a seed.
EVERY = -1
#: Operations per scenario: the rest of a scenario is not played when one of them has done harm.
_EACH = 8
LEAVES = (
    Leaf("all0", "float32", 30_000, shared=True, noise=True, numpy=False),
    Leaf("all1", "int64", 2_000, shared=True, noise=False, numpy=True),
    Leaf("own2", "uint8", 5_000, shared=False, noise=True, numpy=False),
)


def every() -> list[Scenario]:
    """All of them."""
    kinds = itertools.product(OPERATIONS, (0, 1), ERRORS, (False, True))
    blocks = [(*kind, first) for kind in kinds for first in range(0, OPERATIONS[kind[0]], _EACH)]
    return [_scenario(number, *block) for number, block in enumerate(blocks)]


def _scenario(number: int, place: tuple[str, str], rank: int, error: str, lasting: bool, first: int) -> Scenario:
    phase, root = place
    lives = [quiet_life(phase)]
    for operation in range(first, min(first + _EACH, OPERATIONS[place])):
        fault = StorageFault(phase, root, operation, error, lasting, rank)
        lives.append(quiet_life(phase, (fault,), _loss(operation) if phase == "restore" else ()))
    return Scenario(EVERY, number, number % 5 > 0, LEAVES, (*lives, quiet_life(phase)))


def _loss(operation: int) -> tuple[FileFault, ...]:
    """A node is lost, so that something has to be rebuilt: after every other restore, one that is read otherwise."""
    return (FileFault("remove", "node", 1, 0, operation),) if operation % 4 else ()


def quiet_life(phase: str, storage: tuple[StorageFault, ...] = (), before: tuple[FileFault, ...] = ()) -> Life:
    """Saving on all levels, with no faults but these: three nodes of one rank each."""
    every, keep = dict.fromkeys(LEVELS, 1), {"local": 1, "partner": 1, "parity": 1, "persistent": 2}
    return Life(3, 1, every, keep, 1 if phase == "restore" else 2, before=before, storage=storage)
