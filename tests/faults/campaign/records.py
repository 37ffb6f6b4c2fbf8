"""What a campaign is made of: scenarios as frozen records, and how they read.

A scenario is a chain of lives. Faults on files come before a life, storage faults and others happen during it, and a
kill ends it. The last life only restores, so that every fault is followed by a restore that is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LEVELS = ("local", "partner", "parity", "persistent")
FILES = (*LEVELS, "base", "manifest", "lineage", "lock", "temporary", "spare", "node")
ACTIONS = ("flip", "truncate", "garbage", "remove", "swap")
#: About how many operations there are: (phase, root) -> n is drawn below this. A root is
#: what storage faults are injected below: all of a node's storage, one of its levels, or the persistent directory.
OPERATIONS = {
    ("open", "node"): 200,
    ("open", "persistent"): 40,
    ("restore", "node"): 300,
    ("restore", "partner"): 50,
    ("restore", "parity"): 56,
    ("restore", "persistent"): 20,
    ("checkpoint", "node"): 700,
    ("checkpoint", "partner"): 130,
    ("checkpoint", "parity"): 110,
    ("checkpoint", "persistent"): 270,
}
ERRORS = ("ENOSPC", "EIO")
#: Also drawn: what quotas, network file systems and file systems that were made read-only say.
MORE_ERRORS = ("EDQUOT", "EROFS", "ESTALE")
#: The error of an operation that is carried out, but late.
HANG = "hang"
#: Seconds the library waits for other ranks; less than the runner's patience.
TIMEOUT_S = 20.0
DTYPES = {"float32": 4, "uint8": 1, "int64": 8, "bfloat16": 2, "float64": 8}


@dataclass(frozen=True, slots=True)
class Leaf:
    """``count`` elements; the same on all ranks (``shared``) or its own; the same in all steps (``frozen``)."""

    name: str
    dtype: str
    count: int
    shared: bool
    noise: bool
    numpy: bool
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class FileFault:
    """Something happens to files while no job runs.

    Attributes:
        action: one of ACTIONS.
        file: one of FILES.
        count: so many of them.
        age: 0 for those of the newest step, 1 for the one before, -1 for any.
        number: decides which ones and which bytes.
    """

    action: str
    file: str
    count: int
    age: int
    number: int


@dataclass(frozen=True, slots=True)
class StorageFault:
    """Storage operation ``number`` of a rank below ``root`` is refused; all later ones too if ``lasting``.

    Attributes:
        phase: "open", "restore" or "checkpoint"; of the latter, checkpoint ``at``.
        error: name of an errno; or HANG: it takes ``seconds``.
        only: operations that are counted; () for all.
    """

    phase: str
    root: str
    number: int
    error: str
    lasting: bool
    rank: int
    at: int = 0
    seconds: float = 0.0
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningFault:
    """Something happens before checkpoint ``at``, while the job runs.

    Attributes:
        kind: "node" (its directory is removed), "away" (persistent_dir is renamed away until before checkpoint
            ``until``), "lock" (the lock file is removed), "clock" (the wall clock is set forward, or back), "wake"
            (ranks of earlier lives that were left behind, stopped, go on).
        node: which node.
        seconds: of "clock".
    """

    kind: str
    at: int
    until: int = 0
    node: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """Something happens to one process, and the job may go on for a while.

    Attributes:
        kind: "stop" (SIGSTOP, and SIGCONT after ``seconds``), "zombie" (SIGSTOP; left behind when the rest of the job
            is killed, until a later life wakes it), "SIGTERM", "SIGINT" (end it), "SIGTERM raised", "SIGINT raised" (a
            handler in Python raises), "change" (a byte of the newest part on its node changes).
        victim: rank.
        phase, at, stage, count, delay_s: when, as of a :class:`Kill`.
        linger_s: how long other ranks go on when the victim is gone; 0 for as soon as the launcher notices.
    """

    kind: str
    victim: int
    phase: str
    at: int = 0
    stage: str = ""
    count: int = 1
    delay_s: float = 0.0
    seconds: float = 0.0
    linger_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL.

    Attributes:
        scope: "rank", "node" or "all".
        victim: the rank that decides when; killed with its node, or with all, as ``scope`` says.
        phase, at: armed before opening, before restoring, or before checkpoint ``at``.
        stage: when ``victim`` comes by this for the ``count``-th time; "" for ``delay_s`` after arming.
        linger_s: how long the other ranks go on before the launcher ends them; 0 for as soon as it notices.
    """

    scope: str
    victim: int
    phase: str
    at: int
    stage: str
    count: int
    delay_s: float
    linger_s: float


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the job.

    Attributes:
        world, node_size: ranks, and ranks per virtual node.
        every, keep, compression, on_busy, group, tolerate, scrub: of the configuration; ``local`` 0 is no local_dir.
        checkpoints: how many.
        per_rank: "drop", "map" (a function) or "rank0".
        wait: whether each is waited for before the next.
        reuse: steps count on from the restored one; otherwise from the largest ever used.
        again: restore once more at the end.
        before, storage, running, kill, incident: what goes wrong.
        capture: of the configuration.
        timeout_s: of the configuration.
        compares: every committed step is restored and compared.
        prepares: ``prepare()`` comes before the first checkpoint.
    """

    world: int
    node_size: int
    every: dict[str, int]
    keep: dict[str, int]
    checkpoints: int
    compression: str = "none"
    on_busy: str = "wait"
    group: int | None = None
    tolerate: int | None = None
    scrub: bool = False
    per_rank: str = "drop"
    wait: bool = True
    reuse: bool = False
    again: bool = False
    before: tuple[FileFault, ...] = ()
    storage: tuple[StorageFault, ...] = ()
    running: tuple[RunningFault, ...] = ()
    kill: Kill | None = None
    capture: str = "eager"
    incident: Incident | None = None
    timeout_s: float = TIMEOUT_S
    compares: bool = False
    prepares: bool = False

    @property
    def alone(self) -> bool:
        """Whether it needs a job of its own."""
        return self.kill is not None or self.incident is not None

    @property
    def nodes(self) -> int:
        return -(-self.world // self.node_size)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Lives of one job.

    Attributes:
        seed, number: of the campaign; together they decide everything else.
        threads: whether MPI gives background threads leave to use it (MPI_THREAD_MULTIPLE).
        leaves: of the state.
        lives: in order.
        kind: what it is about; one of ``special.KINDS``.
    """

    seed: int
    number: int
    threads: bool
    leaves: tuple[Leaf, ...]
    lives: tuple[Life, ...] = field(default=())
    kind: str = "files"

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"


def describe(each: Scenario) -> str:
    """A scenario, readable."""
    total = sum(leaf.count * DTYPES[leaf.dtype] for leaf in each.leaves)
    lines = [
        f"scenario {each.name}, {each.kind}: {len(each.leaves)} leaves, {total} bytes; "
        f"threads {'on' if each.threads else 'off'}"
    ]
    for number, life in enumerate(each.lives):
        for fault in life.before:
            lines.append(f"    before: {fault}")
        every = " ".join(f"{level}={life.every[level]}/{life.keep[level]}" for level in LEVELS)
        lines.append(
            f"  life {number}: {life.world} ranks, {life.node_size} per node; every/keep {every}; {life.compression}, "
            f"{life.capture}, on_busy {life.on_busy}, group {life.group}, tolerate {life.tolerate}, "
            f"scrub {life.scrub}, per_rank {life.per_rank}, {life.checkpoints} checkpoints"
            f"{', waiting' if life.wait else ''}{', steps reused' if life.reuse else ''}"
            f"{', restoring again' if life.again else ''}{', preparing' if life.prepares else ''}"
            f"{', comparing all steps' if life.compares else ''}"
        )
        during = (*life.storage, *life.running, life.kill, life.incident)
        lines += [f"    during: {fault}" for fault in during if fault is not None]
    return "\n".join(lines)
