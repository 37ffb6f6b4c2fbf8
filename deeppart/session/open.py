"""Start-up: from a configuration to connected ranks, checked settings and open directories.

Everything here is collective and happens once. Whatever is wrong on one rank ends in an error on every rank.
"""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart.comm import Comm, connect, finish, rank_names
from deeppart.comm.agreement import raise_together
from deeppart.config import Config
from deeppart.config.job import expand_directory, failure_domain, job_name, node_name, scheduled_job
from deeppart.errors import (
    ConfigError,
    DeeppartError,
    DeeppartWarning,
    ReducedProtectionWarning,
    StorageError,
    as_error,
    warn_caller,
)
from deeppart.model import LEVELS, Level, StepKey
from deeppart.nodes.erasure import check_available
from deeppart.nodes.pairing import Protection, protect
from deeppart.part import Signing
from deeppart.plan.redundancy import Nodes
from deeppart.save.compress import Processors
from deeppart.storage.files import make_directory, storage_error
from deeppart.storage.key_files import read_key_files
from deeppart.storage.lineage import read_lineage
from deeppart.storage.mapped import forget_all
from deeppart.storage.node import NODE_FOLDERS, NodeLevel
from deeppart.storage.persistent import DirectoryOwner, PersistentLevel, committed_steps
from deeppart.storage.rate import RateLimit
from deeppart.storage.recognizing import recognize
from deeppart.storage.reduced import note_protection
from deeppart.storage.steps import foreign_steps, list_steps

_WHAT = "starting the checkpointer"
#: Each takes about as much memory as two chunks, for each level that is being written.
MOST_ENCODE_THREADS = 4


@dataclass(frozen=True, slots=True)
class Topology:
    """Which rank is on which node.

    Attributes:
        names: node name of each rank.
        node_of: node number of each rank, in order of first appearance.
        directories: local directory of each rank, "" without one.
        domains: of each node, what it shares with others (a switch); "" where nothing is known.
    """

    names: tuple[str, ...]
    node_of: tuple[int, ...]
    directories: tuple[str, ...]
    domains: tuple[str, ...]

    def mates(self, rank: int) -> tuple[int, ...]:
        """Ranks of the same node, ascending."""
        return tuple(other for other, node in enumerate(self.node_of) if node == self.node_of[rank])

    def first_in_directory(self, rank: int) -> int:
        """The first rank of the same node with the same local directory."""
        return self.sharing_directory(rank)[0]

    def sharing_directory(self, rank: int) -> tuple[int, ...]:
        """Ranks of the same node with the same local directory, ascending."""
        return tuple(mate for mate in self.mates(rank) if self.directories[mate] == self.directories[rank])

    @property
    def nodes(self) -> Nodes:
        """Ranks and domains by node."""
        return Nodes.of(self.node_of, self.domains)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The name of each node."""
        return tuple(self.names[ranks[0]] for ranks in self.nodes.ranks)


@dataclass(slots=True)
class Session:
    """One run of a job.

    Attributes:
        config: as given.
        comm: channel of the training thread.
        channels: level name -> channel of its exchanges; also "scrub", where that is on.
        topology: ranks and nodes.
        lineage, session: identities, 32 hex digits each.
        owner: lock of the persistent directory, on rank 0.
        node_levels: the levels on this node's storage that are on, by name; {} without a ``local_dir``.
        persistent: the persistent level.
        protection: which nodes protect each other.
        limit: of what leaves this rank in the background, or None.
        committed: steps committed on the persistent level at start-up.
        earlier: level name -> all that earlier sessions had left there at start-up. Beside its own directories, what a
            session may ever remove.
        processors: what there is to encode chunks with.
        guards: of the directories: what may be done in them, and whose they may be.
        shared: pairs of nodes whose local directory is one and the same.
    """

    config: Config
    comm: Comm
    channels: dict[str, Comm]
    topology: Topology
    lineage: str
    session: str
    owner: DirectoryOwner | None
    node_levels: dict[str, NodeLevel]
    persistent: PersistentLevel
    protection: Protection
    limit: RateLimit | None
    committed: set[StepKey]
    earlier: dict[str, set[StepKey]]
    processors: Processors
    guards: access.Guards
    shared: tuple[tuple[int, int], ...]

    @property
    def leads_directory(self) -> bool:
        """Whether this is the first of the ranks that share its local directory: it lists it and tidies it up."""
        return bool(self.node_levels) and self.topology.first_in_directory(self.comm.rank) == self.comm.rank

    @property
    def straightens(self) -> bool:
        """Whether it is also the first one of all nodes that have this directory: it may rename files there."""
        node = self.topology.node_of[self.comm.rank]
        return self.leads_directory and all(other != node for _, other in self.shared)

    def drop_spares(self) -> None:
        """Give back storage and mappings on this node that were kept for the next checkpoint."""
        forget_all()
        if self.leads_directory:
            for level in self.node_levels.values():
                level.drop_spares()

    def close(self) -> None:
        """Give the directory and the channels back: nothing of this session is in the background any more."""
        if self.owner is not None:
            self.owner.close()
        self.guards.release()
        for channel in (*self.channels.values(), self.comm):
            channel.give_back()


def open_session(config: Config, comm: Any) -> Session:
    """Connect the ranks and open the directories (collective).

    Args:
        comm: an mpi4py communicator, or None for COMM_WORLD under MPI and one process otherwise.

    Raises:
        LaunchError, ConfigError, StorageError, DirectoryInUseError: what is wrong, on the rank that sees it.
        RemoteRankError: on the others.
        PeerTimeoutError: a rank did not take part.
    """
    main = connect(comm, config.timeout)
    with ExitStack() as taken:
        taken.callback(main.give_back)
        session = _open(main, config, taken)
        taken.pop_all()
    return session


def _open(main: Comm, config: Config, taken: ExitStack) -> Session:
    """A session between connected ranks; ``taken`` gives back what it has taken so far, if its start fails."""
    rank, timeout = main.rank, config.timeout
    signing, error = _read_keys(config, rank)
    raise_together(main, error, _WHAT, timeout)
    topology, processors = _compare_settings(main, config, signing)
    directory = expand_directory(config.persistent_dir, node=topology.names[rank], rank=rank, job=job_name())
    guards = _guard(config, directory, topology.directories[rank])
    taken.callback(guards.release)
    owner, welcome = _open_persistent(main, config, str(directory), timeout)
    if owner is not None:
        taken.callback(owner.close)
    if topology.directories[rank]:
        lineage_directory = Path(topology.directories[rank]) / welcome["lineage"]
        guards.add(lineage_directory, access.node_rules(config.permissions))
    shared = _shared_directories(main, config, topology, welcome)
    protection = protect(config, topology.nodes, topology.node_names, shared)
    levels, earlier, error = _open_levels(main, config, topology, welcome, signing, parity=bool(protection.sets))
    raise_together(main, error, _WHAT, timeout)
    busy = [level for level in LEVELS if protection.every[level]]
    if config.scrub_bandwidth is not None and (protection.copies or protection.sets):
        busy.append("scrub")
    channels: dict[str, Comm] = {}
    for name in busy:
        channels[name] = finish(main, main.channel(), _WHAT, timeout)
        taken.callback(channels[name].give_back)
    if rank == 0:
        _tell_protection(directory, welcome["session"], protection)
        _tell_foreign(directory)
        _tell_copy(directory, owner)
    mates = topology.mates(rank)
    limit = None if config.flush_bandwidth is None else RateLimit(config.flush_bandwidth / len(mates))
    committed = {StepKey(*key) for key in welcome["committed"]}
    earlier[Level.PERSISTENT] = {StepKey(*key) for key in welcome["steps"]}
    session = Session(
        config,
        main,
        channels,
        topology,
        welcome["lineage"],
        welcome["session"],
        owner,
        levels,
        PersistentLevel(directory, limit, signing),
        protection,
        limit,
        committed,
        earlier,
        processors,
        guards,
        shared,
    )
    if session.leads_directory:
        for level in levels.values():
            level.drop_foreign_spares()
    if rank == 0 and config.permissions == "unchecked":
        text = 'permissions = "unchecked": whoever may write to the directories decides what is restored'
        warn_caller(text, DeeppartWarning)
    return session


def _tell_foreign(directory: Path) -> None:
    """On rank 0: step directories that others have put there are not used, and may be what somebody looks for."""
    try:
        foreign = foreign_steps(directory)
    except DeeppartError:
        return  # what is wrong there is told by whoever needs it
    if foreign:
        text = f"{len(foreign)} step directories of other users are not used, such as {foreign[0]}"
        warn_caller(f"{text}: anybody may make directories there (sticky bit)", DeeppartWarning)


def _tell_copy(directory: Path, owner: DirectoryOwner | None) -> None:
    """On rank 0: what lies on nodes belongs to the directory that this one is a copy of."""
    if owner is not None and owner.copy_of:
        former = f", nor are those below {owner.former}, which it had before it was copied over" if owner.former else ""
        warn_caller(
            f"{directory} is a copy of a checkpoint directory, or was brought back: it has lineage {owner.lineage} "
            f"from now on, and parts on nodes that lie below {owner.copy_of} are not used{former}. If it takes the "
            "place of the original and they are wanted, end the job, put that lineage back into deeppart.json and "
            "remove .deeppart.lock",
            DeeppartWarning,
        )


def _tell_protection(root: Path, session: str, protection: Protection) -> None:
    """Say what the nodes cannot give of what was asked for; and once, when they can again."""
    lines = protection.shortfalls
    problem = ""
    recovered = False
    try:
        recovered = note_protection(root, session, lines)
    except StorageError as error:
        problem = f" (`deeppart ls` will not know: {error.summary})"
    if lines:
        warn_caller(
            f"less protection than asked for: {'; '.join(lines)}{problem}. Checkpoints go on with that; "
            "protection='strict' refuses to start instead",
            ReducedProtectionWarning,
        )
    elif recovered:
        warn_caller("this run has all the protection that it asks for; the one before had less", DeeppartWarning)


def _guard(config: Config, persistent: Path, local: str) -> access.Guards:
    """From here on, nothing below these directories is reached but by way of what others have no hand in."""
    guards = access.Guards()
    guards.add(persistent, access.persistent_rules(config.permissions))
    if local:
        guards.add(Path(local), access.node_place(config.permissions))
    return guards


def _read_keys(config: Config, rank: int) -> tuple[Signing | None, DeeppartError | None]:
    """The keys that this rank was given; an error is for every rank to hear of."""
    try:
        files = config.sign_key_file or ()
        return read_key_files(
            [expand_directory(each, node=node_name(), rank=rank, job=job_name()) for each in files]
        ), None
    except ConfigError as refusal:
        return None, refusal


def _compare_settings(comm: Comm, config: Config, signing: Signing | None) -> tuple[Topology, Processors]:
    """Every rank must have been given the same settings; returns who is where, and what this rank can encode with.

    Of keys, keyed digests of a constant are compared, and only that they differ is told.
    """
    name = node_name() if config.node_size is None else f"node{comm.rank // config.node_size}"
    settings = {key: repr(value) for key, value in config.shared_settings().items()}
    directory = _local_directory(config, name, comm.rank)
    processors = [os.uname().nodename, hex(sum(1 << number for number in os.sched_getaffinity(0)))]
    keys = [] if signing is None else list(signing.fingerprints)
    message = json.dumps([name, settings, directory, failure_domain(), processors, keys]).encode()
    texts = finish(comm, comm.allgather(message), _WHAT, config.timeout)
    told = zip(*(json.loads(text) for text in texts), strict=True)
    names, all_settings, directories, domains, all_processors, all_keys = told
    if others := [rank for rank, theirs in enumerate(all_keys) if theirs != all_keys[0]]:
        raise ConfigError(
            "ranks were given different keys in sign_key_file",
            expected=f"the {len(all_keys[0])} of rank 0, in the same order",
            found=f"{len(all_keys[others[0]])}, or another one, on {rank_names(others)}",
            where=f"rank {comm.rank}",
            todo="give every rank the same key files",
        )
    for key, value in all_settings[0].items():
        others = [rank for rank, theirs in enumerate(all_settings) if theirs.get(key) != value]
        if others:
            raise ConfigError(
                f"ranks were given different values for {key}",
                expected=f"{value}, as on rank 0",
                found=f"{all_settings[others[0]].get(key)} on {rank_names(others)}",
                where=f"rank {comm.rank}",
                todo="give every rank the same configuration, environment and deeppart.toml",
            )
    numbers: dict[str, int] = {}
    node_of = tuple(numbers.setdefault(each, len(numbers)) for each in names)
    domain_of = dict(zip(reversed(node_of), reversed(domains), strict=True))
    node_domains = tuple(domain_of[node] for node in range(len(numbers)))
    idle = _idle_processors(processors, all_processors)
    threads = config.encode_threads or max(1, min(MOST_ENCODE_THREADS, idle))
    topology = Topology(tuple(names), node_of, tuple(directories), node_domains)
    return topology, Processors(threads, spare=idle >= threads)


def _idle_processors(mine: list[str], all_processors: tuple[list[str], ...]) -> int:
    """Of the processors that this rank may use, its share less one for training.

    Args:
        mine: host, and a mask of its processors that this rank may use. all_processors: those of all ranks.
    """
    host, usable = mine[0], int(mine[1], 16)
    sharing = sum(other == host and int(mask, 16) & usable != 0 for other, mask in all_processors)
    return usable.bit_count() // max(1, sharing) - 1


def _local_directory(config: Config, node: str, rank: int) -> str:
    """Where this rank's local level will be; "" without one, or where it cannot be told (which is an error later)."""
    if config.local_dir is None:
        return ""
    try:
        return str(expand_directory(config.local_dir, node=node, rank=rank, job=job_name()))
    except ConfigError:
        return ""


def _open_persistent(
    comm: Comm, config: Config, directory: str, timeout: float
) -> tuple[DirectoryOwner | None, dict[str, Any]]:
    """Rank 0 takes the directory and tells the others what it is."""
    owner: DirectoryOwner | None = None
    error: DeeppartError | None = None
    welcome: dict[str, Any] = {}
    if comm.rank == 0:
        job = scheduled_job()
        who = (f"job {job}, " if job else "") + f"process {os.getpid()} on {os.uname().nodename}"
        root = Path(directory)
        try:
            _check_place(root)
            owner = DirectoryOwner(root, who, config.permissions)
            welcome = {
                "lineage": owner.lineage,
                "session": owner.session,
                "committed": [astuple(key) for key in committed_steps(root)],
                "steps": [astuple(key) for key in list_steps(root)],
            }
        except Exception as refusal:  # of whatever kind: the other ranks wait to hear of it
            error = as_error(refusal, f"taking persistent_dir {root} failed")
    try:
        raise_together(comm, error, _WHAT, timeout)
        message = json.dumps(welcome).encode() if comm.rank == 0 else None
        return owner, json.loads(finish(comm, comm.broadcast(message), _WHAT, timeout))
    except BaseException:
        if owner is not None:
            owner.close()
        raise


def _check_place(root: Path) -> None:
    """Refuse a directory that is part of somebody's checkpoint: training would begin anew inside it."""
    mistaken = recognize(root)
    if mistaken is not None and mistaken.root is not None and root.is_dir():
        raise ConfigError(
            f"impossible persistent_dir: {mistaken.what}",
            found=str(root),
            todo=f"persistent_dir={str(mistaken.root)!r}, and restore(state, step=...) for a step of its own",
        )


def _open_levels(
    comm: Comm,
    config: Config,
    topology: Topology,
    welcome: dict[str, Any],
    signing: Signing | None,
    *,
    parity: bool,
) -> tuple[dict[str, NodeLevel], dict[str, set[StepKey]], DeeppartError | None]:
    """This rank's view of both directories, and the steps on its node; an error is for every rank to hear of."""
    node, rank = topology.names[comm.rank], comm.rank
    try:
        persistent = expand_directory(config.persistent_dir, node=node, rank=rank, job=job_name())
        if read_lineage(persistent) != welcome["lineage"]:
            raise StorageError(
                "persistent_dir is not the same directory on every rank",
                expected=f"lineage {welcome['lineage']} in {persistent}, as rank 0 sees it",
                found=f"lineage {read_lineage(persistent)}",
                where=f"rank {rank} on {node}",
                todo="use a directory on a file system that all nodes share",
            )
        if config.local_dir is None:
            return {}, {}, None
        if parity:
            check_available()
        local = expand_directory(config.local_dir, node=node, rank=rank, job=job_name())
        # All of them, also those that are off: what earlier runs left there is to be found and retired.
        what = (welcome["session"], config.permissions, signing)
        levels = {name: NodeLevel(local, welcome["lineage"], name, *what) for name in NODE_FOLDERS}
        return levels, {name: level.steps() for name, level in levels.items()}, None
    except Exception as refusal:
        return {}, {}, as_error(refusal, "opening the levels on this node failed")


def _shared_directories(
    comm: Comm, config: Config, topology: Topology, welcome: dict[str, Any]
) -> tuple[tuple[int, int], ...]:
    """Pairs of nodes whose local directory is one and the same (collective): each leaves a mark and looks for others'.

    Best effort: file systems that show new files of other hosts only after a while are not seen through.
    """
    rank = comm.rank
    if len(topology.nodes) < 2 or not any(topology.directories):
        return ()
    node, directory = topology.node_of[rank], Path(topology.directories[rank] or ".")
    leads = bool(topology.directories[rank]) and topology.first_in_directory(rank) == rank
    prefix = f".node-{welcome['session']}-"
    mark = directory / f"{prefix}{node}"
    error: DeeppartError | None = None
    try:
        if leads:
            make_directory(directory, access.node_place(config.permissions))
            os.close(access.create(mark))
    except OSError as refusal:
        error = storage_error("local_dir is not writable", refusal, directory)
    except Exception as refusal:
        error = as_error(refusal, "making local_dir failed")
    raise_together(comm, error, _WHAT, config.timeout)
    seen: set[int] = set()
    if leads:
        with contextlib.suppress(OSError):  # the level itself will tell
            names = [name[len(prefix) :] for name in access.names_in(directory) if name.startswith(prefix)]
            seen = {int(name) for name in names if name.isdigit()} - {node}
    message = json.dumps([[node, other] for other in sorted(seen)]).encode()
    texts = finish(comm, comm.allgather(message), _WHAT, config.timeout)
    if leads:
        with contextlib.suppress(OSError):
            access.remove(mark)
    return tuple(sorted({(min(pair), max(pair)) for text in texts for pair in json.loads(text)}))
