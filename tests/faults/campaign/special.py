"""Scenarios about one thing each: processes that stop, storage that hangs, clocks, signals.

Pure, like ``plan``, which decides which scenario is of which kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.faults.campaign.records import (
    HANG,
    LEVELS,
    FileFault,
    Incident,
    Leaf,
    Life,
    RunningFault,
    StorageFault,
)
from tests.faults.campaign.stages import CHANGES, LEADER, ROOT, STAGES

#: In lives where ranks wait for one that is gone: seconds.
SHORT_TIMEOUT_S = 3.0
#: A rank is stopped, or storage hangs, for longer than that.
LONG_S = 4.5
#: Each operation of a storage that goes on hanging: a checkpoint with copies and parity makes a dozen of a kind; it
#: opens files and directories some 30 times, of which all have to come to an end while the judge waits.
EACH_S, EACH_OPEN_S = 3.2, 0.5
#: Operations that a file system may hang in.
LATE = (("open",), ("write",), ("fsync",), ("rename", "rename_noreplace", "link"))

Leaves = tuple[Leaf, ...]
Lives = tuple[Life, ...]


def quiet_life(world: int, checkpoints: int, *, redundant: bool = True) -> Life:
    """One rank per node, saving everywhere at every step, and nothing goes wrong."""
    nodes = int(redundant and world > 1)
    every = {"local": 1, "partner": nodes, "parity": nodes, "persistent": 1}
    keep = {"local": 1, "partner": 1, "parity": 1, "persistent": 0}
    return Life(world, 1, every, keep, checkpoints, reuse=True)


def comparing(life: Life) -> Life:
    """A life that restores every committed step and saves nothing."""
    return replace(life, checkpoints=0, compares=True)


def leaves_of(rng: random.Random) -> Leaves:
    """A state of a few leaves."""
    return (
        Leaf("all0", "float32", rng.choice((3_000, 30_000, 120_000)), True, True, False),
        Leaf("all1", rng.choice(("float64", "bfloat16")), rng.choice((100, 20_000)), True, True, False),
        Leaf("own2", "uint8", rng.choice((500, 20_000)), False, True, False),
        Leaf("all3", "int64", 1_000, True, False, numpy=True, frozen=rng.random() < 0.5),
    )


def _moment(rng: random.Random, life: Life, checkpoints: int) -> tuple[int, str, int, str]:
    """Victim, phase, checkpoint and stage of something that happens while a checkpoint is made."""
    redundant = [level for level in LEVELS if life.every[level]]
    names = [
        name
        for name, stage in STAGES.items()
        if stage.phase == "checkpoint"
        and (stage.needs in redundant or stage.needs in ("", "retire"))
        and not name.startswith("retiring")
    ]
    name = rng.choice(names)
    stage = STAGES[name]
    victim = 0 if stage.who == ROOT else rng.randrange(life.world)
    if stage.who == LEADER:
        victim -= victim % life.node_size
    return victim, "checkpoint", rng.randrange(checkpoints), name


def _with(life: Life, what: Incident) -> Life:
    """A life in which something happens to a process, and others do not wait for it for long."""
    return replace(life, incident=what, timeout_s=SHORT_TIMEOUT_S)


def stop(rng: random.Random) -> tuple[Leaves, Lives]:
    """A rank stops at a step of a checkpoint for longer than the others wait, and goes on."""
    life = replace(quiet_life(rng.choice((2, 3)), 3), reuse=rng.random() < 0.5)
    victim, phase, at, name = _moment(rng, life, 3)
    what = Incident("stop", victim, phase, at, name, seconds=LONG_S)
    return leaves_of(rng), (replace(life, checkpoints=2), _with(life, what), comparing(life))


def zombie(rng: random.Random) -> tuple[Leaves, Lives]:
    """A stopped rank outlives its job, and goes on when the next one has committed on the same directories."""
    life = quiet_life(rng.choice((2, 2, 3)), 2)
    victim, phase, at, name = _moment(rng, life, 2)
    if rng.random() < 0.5:  # what it holds in its hand is a file that the next job has, too
        name = rng.choice(("persistent part: before its name", "persistent part: writing", "local part: writing"))
        victim = rng.randrange(life.world)
    what = Incident("zombie", victim, phase, at, name, seconds=0.2)
    unlocked = (FileFault("remove", "lock", 1, -1, 0),) if victim == 0 else ()  # as where locks do not reach
    wake = RunningFault("wake", rng.choice((1, 2, 3)))
    successor = replace(life, checkpoints=3, before=unlocked, running=(wake,))
    return leaves_of(rng), (replace(life, checkpoints=1), _with(life, what), successor, comparing(life))


def hang(rng: random.Random) -> tuple[Leaves, Lives]:
    """An operation of storage takes longer than anybody waits."""
    world = rng.choice((1, 2, 3))
    on_busy, capture = rng.choice(("wait", "skip")), rng.choice(("eager", "lazy"))
    life = replace(quiet_life(world, 4), on_busy=on_busy, capture=capture)
    root = rng.choice(("persistent", "persistent", "node"))
    only = rng.choice(LATE)
    lasting = rng.random() < 0.2
    each_s = EACH_OPEN_S if only == LATE[0] else EACH_S
    seconds = each_s if lasting else rng.choice((LONG_S, 2 * LONG_S))
    number = rng.randrange(4)
    fault = StorageFault("checkpoint", root, number, HANG, lasting, rng.randrange(world), 1, seconds, only)
    return leaves_of(rng), (
        replace(life, checkpoints=1),
        replace(life, wait=False, storage=(fault,), timeout_s=SHORT_TIMEOUT_S),
        comparing(life),
    )


def clock(rng: random.Random) -> tuple[Leaves, Lives]:
    """The wall clock is set back, and forward, in the middle of lives."""
    lives = []
    for _ in range(rng.choice((2, 3))):
        life = replace(quiet_life(rng.choice((1, 2)), 4, redundant=False), reuse=rng.random() < 0.5)
        jumps = (rng.choice((-3600.0, -86_400.0, 7200.0)) * rng.random() for _ in range(2))
        running = tuple(RunningFault("clock", at, seconds=seconds) for at, seconds in zip((0, 2), jumps, strict=True))
        keep = life.keep | {"persistent": rng.choice((0, 1, 2))}
        lives.append(replace(life, running=running, keep=keep, wait=rng.random() < 0.7))
    return leaves_of(rng), (*lives, comparing(lives[-1]))


def signals(rng: random.Random) -> tuple[Leaves, Lives]:
    """SIGTERM or SIGINT arrives in ``checkpoint``, ``restore`` or ``wait``, with a handler that raises or without."""
    life = quiet_life(rng.choice((1, 2, 3)), 3)
    kind = rng.choice(("SIGTERM", "SIGINT", "SIGTERM raised", "SIGINT raised", "SIGINT raised"))
    linger_s = rng.choice((0.0, 6.0))
    if rng.random() < 0.5:
        victim, phase, at, name = _moment(rng, life, 3)
        delay_s = 0.0
    else:
        victim, at, name = rng.randrange(life.world), rng.randrange(3), ""
        phase, delay_s = rng.choice(("restore", "checkpoint", "checkpoint")), rng.choice((0.001, 0.01, 0.03))
        delay_s *= rng.random()
    what = Incident(kind, victim, phase, at, name, delay_s=delay_s, linger_s=linger_s)
    return leaves_of(rng), (replace(life, checkpoints=2), _with(life, what), comparing(life))


def change(rng: random.Random) -> tuple[Leaves, Lives]:
    """A part changes after it was checked, while copies or parity are made of it; then nodes are lost.

    Nothing is on the persistent level: what was made of other bytes takes everything along.
    """
    world = rng.choice((3, 4))
    tolerate = rng.randint(1, world - 2)
    every = {"local": 1, "partner": rng.choice((0, 0, 1)), "parity": 1, "persistent": 0}
    life = replace(quiet_life(world, 2), every=every, tolerate=tolerate)
    victim = rng.randrange(world)
    lost = FileFault("remove", "node", rng.randint(1, tolerate), -1, rng.randrange(1 << 30))
    more = FileFault("remove", "node", rng.choice((1, tolerate)), -1, rng.randrange(1 << 30))
    if rng.random() < 0.3:
        names = [name for name, stage in CHANGES.items() if every.get(stage.needs)]
        what = Incident("change", victim, "checkpoint", 1, rng.choice(names))
        return leaves_of(rng), (_with(life, what), replace(comparing(life), before=(more,)))
    damage: tuple[FileFault, ...] = (lost,)
    if rng.random() < 0.5:
        nodes = FileFault("swap", "nodes", 2, -1, rng.randrange(1 << 30))
        file = "partner" if every["partner"] else "local"
        damage = (nodes, FileFault("flip", file, 1, 0, rng.randrange(1 << 30)))
    what = Incident("change", victim, "restore", 0, rng.choice(list(CHANGES)))
    healing = _with(replace(comparing(life), before=damage, compares=False), what)
    if rng.random() < 0.3:
        healing = replace(healing, incident=None)
    return leaves_of(rng), (life, healing, replace(comparing(life), before=(more,)))


#: Kind -> what draws a scenario of it, and its share of those that are not about files.
DRAWN: dict[str, tuple[Callable[[random.Random], tuple[Leaves, Lives]], float]] = {
    "stop": (stop, 3),
    "zombie": (zombie, 3),
    "hang": (hang, 3),
    "clock": (clock, 2),
    "signal": (signals, 4),
    "change": (change, 0),
}
#: Files and storage of all kinds, and kills: what ``plan`` draws. Power loss has no lives: see ``cutting``.
FILES_KIND, POWER_KIND, CHANGE_KIND = "files", "power", "change"
KINDS = (FILES_KIND, POWER_KIND, *DRAWN)
FILES_SHARE, POWER_SHARE = 0.72, 0.04
#: Drawn before the others, so that these are what they were before there was this kind.
CHANGE_SHARE = 0.04


def kind_of(seed: int, number: int) -> str:
    """What a scenario is about."""
    if random.Random(f"{seed}:{number}:change").random() < CHANGE_SHARE:
        return CHANGE_KIND
    rng = random.Random(f"{seed}:{number}:kind")
    place = rng.random()
    if place < FILES_SHARE + POWER_SHARE:
        return FILES_KIND if place < FILES_SHARE else POWER_KIND
    return rng.choices(list(DRAWN), [share for _, share in DRAWN.values()])[0]
