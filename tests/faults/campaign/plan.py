"""What a campaign does, from a seed: drawn, pure, and the same every time, in every process."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.faults.campaign import special
from tests.faults.campaign.records import (
    ACTIONS,
    DTYPES,
    ERRORS,
    LEVELS,
    MORE_ERRORS,
    OPERATIONS,
    FileFault,
    Kill,
    Leaf,
    Life,
    RunningFault,
    Scenario,
    StorageFault,
)
from tests.faults.campaign.stages import LEADER, ROOT, STAGES


def scenario(seed: int, number: int, most_ranks: int = 6, kills: float = 0.4) -> Scenario:
    """The scenario of a seed and a number.

    Args:
        most_ranks: largest world.
        kills: share of scenarios in which a life ends with SIGKILL.
    """
    rng = random.Random(f"{seed}:{number}")
    threads = rng.random() > 0.12
    kind = special.kind_of(seed, number)
    if kind == special.POWER_KIND:
        return Scenario(seed, number, True, (), (), kind)
    if kind != special.FILES_KIND:
        leaves, special_lives = special.DRAWN[kind][0](rng)
        return Scenario(seed, number, True, leaves, tuple(special_lives), kind)
    leaves = _leaves(rng)
    count = rng.choice((2, 3, 4, 4, 5, 5))
    killed = rng.randrange(count - 1) if rng.random() < kills else -1
    lives: list[Life] = []
    for place in range(count):
        base = _job(rng, most_ranks, 4 if place == killed else most_ranks, lives)
        last = place == count - 1
        life = _with_faults(rng, base, lives, killed=place == killed, last=last)
        # Drawn apart: a seed means what it meant before.
        prepares = random.Random(f"{seed}:{number}:{place}:prepares").random() < 0.3
        life = replace(life, prepares=prepares and life.checkpoints > 0)
        lives.append(life)
    return Scenario(seed, number, threads, leaves, tuple(lives))


# --- jobs -------------------------------------------------------------------------------------------------------------


def _leaves(rng: random.Random) -> tuple[Leaf, ...]:
    leaves = []
    # Leaves of one dtype lie in the same chunks, and whole chunks are what is referred to.
    frozen = rng.sample(list(DTYPES), rng.choice((0, 1, 2, 2, 3)))
    for place in range(rng.randint(2, 7)):
        dtype = rng.choice(list(DTYPES))
        nbytes = rng.choice((0, 8, 96, 1000, 4096, 20_000, 65_536, 70_000, 200_000, 500_000))
        if rng.random() < 0.06:
            nbytes = rng.choice((1_000_000, 2_100_000))
        shared = place < 2 or rng.random() < 0.6
        count = (nbytes if shared else min(nbytes, 100_000)) // DTYPES[dtype]
        noise, numpy = rng.random() < 0.7, dtype != "bfloat16" and rng.random() < 0.2
        name = f"{'all' if shared else 'own'}{place}"
        leaves.append(Leaf(name, dtype, count, shared, noise, numpy, frozen=dtype in frozen))
    return tuple(leaves)


def _job(rng: random.Random, most_ranks: int, most_here: int, lives: list[Life]) -> Life:
    """A life without faults: as the one before, or drawn anew."""
    if lives and rng.random() < 0.6 and lives[-1].world <= most_here:
        world, node_size = lives[-1].world, lives[-1].node_size
    else:
        world = min(rng.choice((1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 6)), most_ranks, most_here)
        node_size = rng.choice((1, 1, 1, 2, 2, 3))
    nodes = -(-world // node_size)
    local = rng.choice((0, 1, 1, 1, 1, 1, 1, 2))
    every = {"local": local, "partner": 0, "parity": 0, "persistent": rng.choice((0, 1, 1, 2, 2, 3, 4))}
    group = tolerate = None
    if local and nodes > 1:
        every["partner"] = local * rng.choice((0, 0, 1, 1, 2))
        every["parity"] = local * rng.choice((0, 1, 1, 1, 2))
        group = rng.choice((None, None, rng.randint(2, nodes)))
        tolerate = rng.choice((None, rng.randint(1, (group or nodes) - 1)))
    if not any(every.values()):
        every["persistent"] = 1
    keep = {level: rng.choice((0, 1, 1, 1, 2, 3)) for level in LEVELS}
    # Drawn in this order: a seed means what it meant before.
    compression = rng.choice(("none", "tensor", "auto", "auto", "zstd"))
    capture, on_busy = rng.choice(("eager", "lazy")), rng.choice(("wait", "wait", "skip"))
    scrub = bool(local) and rng.random() < 0.08
    per_rank, checkpoints = rng.choice(("drop", "map", "rank0")), rng.choice((1, 2, 2, 3, 3, 4, 6))
    wait, reuse, again = rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.15
    return Life(
        world, node_size, every, keep, checkpoints, compression, on_busy, group, tolerate, scrub, per_rank,
        wait=wait, reuse=reuse, again=again, capture=capture,
    )  # fmt: skip


def _with_faults(rng: random.Random, life: Life, lives: list[Life], *, killed: bool, last: bool) -> Life:
    if lives:
        life = replace(life, before=_file_faults(rng, lives))
    if last:
        return replace(life, checkpoints=0, again=False)
    if killed:
        return _with_kill(rng, life, restoring=bool(lives))
    life = replace(life, storage=_storage_faults(rng, life, restoring=bool(lives)))
    if rng.random() < 0.12 and life.checkpoints > 1:
        life = replace(life, running=(_running_fault(rng, life),))
    return life


# --- faults -----------------------------------------------------------------------------------------------------------


def _file_faults(rng: random.Random, lives: list[Life]) -> tuple[FileFault, ...]:
    weights = {"lineage": 2, "lock": 3, "temporary": 4}
    # A list: in which order a set of names comes is another in every process, and with it what is drawn.
    levels = [level for level in LEVELS if any(life.every[level] for life in lives)]
    weights |= {level: 20 if level == "local" else 14 for level in levels}
    weights |= {"node": 16, "spare": 3} if "local" in levels else {}
    weights |= {"manifest": 10} if "persistent" in levels else {}
    weights["base"] = 12
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 4))):
        file = rng.choices(list(weights), list(weights.values()))[0]
        action = "remove" if file == "node" else rng.choices(ACTIONS, (40, 25, 12, 15, 8))[0]
        age = rng.choice((0, 0, 0, 0, 1, -1))
        faults.append(FileFault(action, file, rng.choice((1, 1, 1, 1, 2, 3)), age, rng.randrange(1 << 30)))
    if "local" in levels and rng.random() < 0.15:  # the job gets the nodes in another order
        faults.append(FileFault("swap", "nodes", 2, -1, rng.randrange(1 << 30)))
    return tuple(faults)


def _storage_faults(rng: random.Random, life: Life, *, restoring: bool) -> tuple[StorageFault, ...]:
    if rng.random() < 0.25:
        return ()
    roots = ["persistent"] + (["node", "node"] if life.every["local"] else [])
    roots += [level for level in ("partner", "parity") if life.every[level]]
    faults = []
    phases = ("open", "open", "restore", "restore", "restore", "checkpoint", "checkpoint", "checkpoint", "checkpoint")
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        phase, root = rng.choice(phases), rng.choice(roots)
        if phase == "restore" and not restoring:
            phase = "checkpoint"
        if (phase, root) not in OPERATIONS:
            root = "node"
        rank = 0 if root == "persistent" and rng.random() < 0.5 else rng.randrange(life.world)
        number = int(OPERATIONS[phase, root] * rng.random() ** 1.5)  # most have fewer operations than the most
        if rank and root == "persistent":
            number %= 60  # rank 0 alone commits and retires
        at = rng.randrange(life.checkpoints)
        error = rng.choice((*ERRORS, *ERRORS, *MORE_ERRORS))
        faults.append(StorageFault(phase, root, number, error, rng.random() < 0.15, rank, at))
    return tuple(faults)


def _running_fault(rng: random.Random, life: Life) -> RunningFault:
    at = rng.randrange(1, life.checkpoints)
    kind = rng.choice(("node", "away", "away", "lock") if life.every["local"] else ("away", "lock"))
    return RunningFault(kind, at, rng.randint(at + 1, life.checkpoints), rng.randrange(life.nodes))


def _with_kill(rng: random.Random, life: Life, *, restoring: bool) -> Life:
    """The same with a kill, and with what its stage needs to be reached."""
    scope = rng.choice(("rank", "rank", "node", "all"))
    victim = rng.randrange(life.world)
    linger = 0.0 if scope == "all" else rng.choice((0.0, 0.0, 0.05, 0.3))
    if rng.random() < 0.35:
        phase = rng.choice(("open", "checkpoint", "checkpoint", "checkpoint", "checkpoint", "restore"))
        delay = rng.choice((0.001, 0.003, 0.01, 0.03, 0.1)) * rng.random()
        return replace(life, kill=Kill(scope, victim, phase, rng.randrange(life.checkpoints), "", 1, delay, linger))
    redundant = [level for level in ("partner", "parity") if life.every[level]]
    names = [name for name, stage in STAGES.items() if _reachable(stage.needs, stage.phase, life, redundant, restoring)]
    name = rng.choice(names)
    stage = STAGES[name]
    level = stage.needs if stage.needs in LEVELS else "persistent" if stage.needs == "retire" else ""
    at = 0
    if stage.phase == "checkpoint":
        each = life.every[level] if level else 1
        if name.startswith("retiring"):
            life = replace(life, keep={**life.keep, level: 1})
        at = each * rng.choice((1, 2) if name.startswith("retiring") else (0, 0, 1, 2))
        life = replace(life, checkpoints=max(life.checkpoints, at + each))
    if stage.who == ROOT:
        victim = 0
    elif stage.who == LEADER:
        victim -= victim % life.node_size
    count = 1 if stage.who == ROOT or "name" in name or "round" in name else rng.choice((1, 1, 2, 3))
    if stage.needs in ("rebuild", "heal"):
        forced = FileFault("remove", rng.choice(("node", "local")), 1, 0, rng.randrange(1 << 30))
        life, count = replace(life, before=(*life.before, forced)), 1
    return replace(life, kill=Kill(scope, victim, stage.phase, at, name, count, 0.0, linger))


def _reachable(needs: str, phase: str, life: Life, redundant: list[str], restoring: bool) -> bool:
    if phase == "restore" and not restoring:
        return False
    if needs == "retire":
        return life.every["persistent"] > 0
    if needs in ("rebuild", "heal"):
        return "parity" in redundant if needs == "rebuild" else bool(redundant)
    return not needs or life.every[needs] > 0
