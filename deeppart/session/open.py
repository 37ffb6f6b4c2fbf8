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
from deeppart.access import storage_error
from deeppart.comm import Comm, connect, finish, raise_together, together
from deeppart.config import (
    Config,
    expand_directory,
    job_name,
    node_name,
    resolve_config,
    restarts_at_one_store,
    scheduled_job,
)
from deeppart.errors import (
    ConfigError,
    DeeppartError,
    DeeppartWarning,
    ReducedProtectionWarning,
    StorageError,
    as_error,
    say,
    warn_caller,
)
from deeppart.model import LEVELS, Level, StepKey
from deeppart.nodes import Protection, check_available, protect
from deeppart.part import Signing, read_key_files
from deeppart.session.record import Session
from deeppart.session.topology import Topology, compare_settings
from deeppart.session.wiring import telemetry_files
from deeppart.storage.files import make_directory
from deeppart.storage.lineage import LINEAGE_NAME, read_lineage
from deeppart.storage.manifests import committed_among
from deeppart.storage.mistaken_paths import recognize
from deeppart.storage.node import NODE_FOLDERS, NodeLevel
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.rate import RateLimit
from deeppart.storage.records import note_protection
from deeppart.storage.steps import list_steps

_WHAT = "starting the checkpointer"
#: How long a rank that cannot start waits to tell the others, who may not come at all.
_REFUSAL_PATIENCE_S = 30.0


def configuration_of(config: Config | None, settings: dict[str, Any], comm: Any) -> Config:
    """The configuration that a checkpointer is made with; where it is refused, the other ranks hear of it."""
    try:
        return resolve_config(config, settings)
    except (DeeppartError, TypeError) as error:
        _tell_refusal(error, comm)
        raise


def _tell_refusal(error: Exception, comm: Any) -> None:
    """Tell the ranks that are on their way to :func:`open_session` that this one cannot start (collective)."""
    within = _WHAT, _REFUSAL_PATIENCE_S
    with contextlib.suppress(DeeppartError):  # what counts is the error
        main = connect(comm, _REFUSAL_PATIENCE_S)
        try:
            raise_together(main, as_error(error, "the settings were refused"), *within)
        finally:
            main.give_back()


def open_session(config: Config, comm: Any) -> Session:
    """Connect the ranks and open the directories (collective)."""
    main = connect(comm, config.timeout)
    with ExitStack() as taken:
        taken.callback(main.give_back)
        session = _open(main, config, taken)
        taken.pop_all()
    return session


def _open(main: Comm, config: Config, taken: ExitStack) -> Session:
    """A session between connected ranks; ``taken`` gives back what it has taken so far, if its start fails."""
    rank, within = main.rank, (_WHAT, config.timeout)
    if rank == 0:
        tell_settings(config)
    signing = together(main, lambda: _read_keys(config, rank), "reading sign_key_file failed", within)
    topology, processors = compare_settings(main, config, signing, _WHAT)
    node = topology.names[rank]
    directory, telemetry = together(
        main, lambda: _paths(config, node, rank), "the directories could not be found out", within
    )
    guards = guard_directories(config, directory, topology.directories[rank])
    taken.callback(guards.release)
    owner, handshake = take_persistent(main, config, str(directory), within)
    if owner is not None:
        taken.callback(owner.close)
    if topology.directories[rank]:
        lineage_directory = Path(topology.directories[rank]) / handshake.lineage
        guards.add(lineage_directory, access.node_rules(config.permissions))
    shared = shared_directories(main, config, topology, handshake, _WHAT)
    protection = protect(config, topology.nodes, topology.node_names, shared)
    levels, earlier = together(
        main,
        lambda: open_levels(rank, config, topology, handshake, signing, parity=bool(protection.sets)),
        "opening the levels on this node failed",
        within,
    )
    busy = [level for level in LEVELS if protection.every[level]]
    if config.scrub_bandwidth is not None and (protection.copies or protection.sets):
        busy.append("scrub")
    channels: dict[str, Comm] = {}
    for name in busy:
        channels[name] = finish(main, main.channel(), *within)
        taken.callback(channels[name].give_back)
    if rank == 0:
        if main.size > 1:
            tell_restarts()
        tell_protection(directory, handshake.session, protection)
        tell_lineage(directory, owner)
    mates = topology.mates(rank)
    limit = None if config.flush_bandwidth is None else RateLimit(config.flush_bandwidth / len(mates))
    earlier[Level.PERSISTENT] = set(handshake.steps)
    session = Session(
        config,
        main,
        channels,
        topology,
        handshake.lineage,
        handshake.session,
        owner,
        levels,
        PersistentLevel(directory, limit, signing, mates if config.files == "node" else ()),
        protection,
        limit,
        set(handshake.committed),
        earlier,
        processors,
        guards,
        telemetry,
    )
    if session.leads_directory:
        for level in levels.values():
            level.drop_foreign_spares()
    if rank == 0 and config.permissions == "unchecked":
        text = 'permissions = "unchecked": whoever may write to the directories decides what is restored'
        warn_caller(text, DeeppartWarning)
    return session


def _paths(config: Config, node: str, rank: int) -> tuple[Path, dict[str, Path]]:
    """The persistent directory, and the files for those who watch the job, as this rank has them."""
    directory = expand_directory(config.persistent_dir, node=node, rank=rank, job=job_name())
    return directory, telemetry_files(config, node, rank)


def _read_keys(config: Config, rank: int) -> Signing | None:
    """The keys that this rank was given."""
    files = config.sign_key_file or ()
    return read_key_files([expand_directory(each, node=node_name(), rank=rank, job=job_name()) for each in files])


@dataclass(frozen=True, slots=True)
class Handshake:
    """The common knowledge of all ranks of a session about its persistent directory.

    Attributes:
        lineage, session: identities, 32 hex digits each.
        committed: steps committed at start-up.
        steps: all step directories that earlier sessions had left.
    """

    lineage: str
    session: str
    committed: frozenset[StepKey]
    steps: frozenset[StepKey]

    def to_json(self) -> bytes:
        """For the other ranks."""
        committed, steps = ([astuple(key) for key in keys] for keys in (self.committed, self.steps))
        return json.dumps([self.lineage, self.session, committed, steps]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Handshake:
        """Read what :meth:`to_json` made."""
        lineage, session, committed, steps = json.loads(text)
        keys = (frozenset(StepKey(*key) for key in each) for each in (committed, steps))
        return cls(lineage, session, *keys)


def take_persistent(
    comm: Comm, config: Config, directory: str, within: tuple[str, float]
) -> tuple[DirectoryOwner | None, Handshake]:
    """Rank 0 takes the directory and tells the others what it is (collective); the owner is None elsewhere."""
    what, timeout = within
    owner: DirectoryOwner | None = None

    def take() -> bytes | None:
        nonlocal owner
        if comm.rank:
            return None
        root, job = Path(directory), scheduled_job()
        who = (f"job {job}, " if job else "") + f"process {os.getpid()} on {os.uname().nodename}"
        _check_place(root)
        owner = DirectoryOwner(root, who, config.permissions)
        steps = list_steps(root)
        committed = committed_among(steps, root)
        return Handshake(owner.lineage, owner.session, frozenset(committed), frozenset(steps)).to_json()

    try:
        message = together(comm, take, f"taking persistent_dir {directory} failed", within)
        return owner, Handshake.from_json(finish(comm, comm.broadcast(message), what, timeout))
    except BaseException:
        if owner is not None:
            owner.close()
        raise


def _check_place(root: Path) -> None:
    """Refuse a directory inside a checkpoint: training would start over inside it."""
    mistaken = recognize(root)
    if mistaken is not None and mistaken.root is not None and root.is_dir():
        raise ConfigError(
            f"impossible persistent_dir: {mistaken.what}",
            found=str(root),
            todo=f"persistent_dir={str(mistaken.root)!r}, and restore(state, step=...) for a step of its own",
        )


def guard_directories(config: Config, persistent: Path, local: str) -> access.Guards:
    """From here on, nothing below these directories is reached but by way of what others have no hand in."""
    guards = access.Guards()
    guards.add(persistent, access.persistent_rules(config.permissions))
    if local:
        guards.add(Path(local), access.node_place(config.permissions))
    return guards


def open_levels(
    rank: int, config: Config, topology: Topology, handshake: Handshake, signing: Signing | None, *, parity: bool
) -> tuple[dict[str, NodeLevel], dict[str, set[StepKey]]]:
    """This rank's view of both directories, and the steps on its node."""
    node = topology.names[rank]
    persistent = expand_directory(config.persistent_dir, node=node, rank=rank, job=job_name())
    if read_lineage(persistent) != handshake.lineage:
        raise StorageError(
            "persistent_dir is not the same directory on every rank",
            expected=f"lineage {handshake.lineage}, that of the directory of rank 0",
            found=f"lineage {read_lineage(persistent)} in {persistent}",
            where=f"rank {rank} on {node}",
            todo="use a directory on a file system that all nodes share",
        )
    if config.local_dir is None:
        return {}, {}
    if parity:
        check_available()
    local = expand_directory(config.local_dir, node=node, rank=rank, job=job_name())
    # All of them, also those that are off: what earlier runs left there is to be found and retired.
    what = (handshake.session, config.permissions, signing)
    levels = {name: NodeLevel(local, handshake.lineage, name, *what) for name in NODE_FOLDERS}
    return levels, {name: level.steps() for name, level in levels.items()}


def shared_directories(
    comm: Comm, config: Config, topology: Topology, handshake: Handshake, what: str
) -> tuple[tuple[int, int], ...]:
    """Pairs of nodes whose local directory is one and the same (collective): each leaves a mark and looks for others'.

    Best effort: file systems that show new files of other hosts only after a while are not seen through.
    """
    rank = comm.rank
    if len(topology.nodes) < 2 or not any(topology.directories):
        return ()
    node, directory = topology.node_of[rank], Path(topology.directories[rank] or ".")
    leads = bool(topology.directories[rank]) and topology.first_in_directory(rank) == rank
    prefix = f".node-{handshake.session}-"
    mark = directory / f"{prefix}{node}"

    def leave_mark() -> None:
        if leads:
            try:
                make_directory(directory, access.node_place(config.permissions))
                os.close(access.create(mark))
            except OSError as refusal:
                raise storage_error("local_dir is not writable", refusal, directory) from refusal

    together(comm, leave_mark, "making local_dir failed", (what, config.timeout))
    seen: set[int] = set()
    if leads:
        with contextlib.suppress(OSError):  # the level itself will tell
            names = [name[len(prefix) :] for name in access.names_in(directory) if name.startswith(prefix)]
            seen = {int(name) for name in names if name.isdigit()} - {node}
    message = json.dumps([[node, other] for other in sorted(seen)]).encode()
    texts = finish(comm, comm.allgather(message), what, config.timeout)
    if leads:
        with contextlib.suppress(OSError):
            access.remove(mark)
    return tuple(sorted({(min(pair), max(pair)) for text in texts for pair in json.loads(text)}))


def tell_settings(config: Config) -> None:
    """On rank 0: which settings come from a file that the user has not named."""
    if config.from_file:
        note = "; this keep removes no steps of earlier runs" if "keep" in config.from_file else ""
        say(f"settings from {next(iter(config.from_file.values()))}: {', '.join(config.from_file)}{note}")


def tell_restarts() -> None:
    """On rank 0: of torchrun's restarts, at the first start already; the next one may not come this far."""
    if restarts := restarts_at_one_store():
        warn_caller(
            f"after a restart by torchrun (--max-restarts={restarts}) torch.distributed.init_process_group() fails "
            "with gloo: it finds the addresses of dead ranks in the store, which torchrun keeps. Start with "
            "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone ...`, on several nodes with `--rdzv-backend="
            "c10d --rdzv-endpoint=HOST:PORT` instead of `--standalone`; not with --master-port "
            "(docs/elastic-torchrun.md)",
            DeeppartWarning,
        )


def tell_lineage(directory: Path, owner: DirectoryOwner | None) -> None:
    """On rank 0: the record of the lineage was damaged, or the directory is a copy: parts on nodes may not be used."""
    if owner is not None and owner.damage:
        warn_caller(
            f"{directory / LINEAGE_NAME} could not be read ({owner.damage}) and has been written anew, with lineage "
            f"{owner.lineage}: parts on nodes are found if they lie below that name; committed steps always are",
            DeeppartWarning,
        )
    if owner is not None and owner.copy_of:
        warn_caller(
            f"{directory} is a copy of a checkpoint directory, or was restored from a backup. There is nothing to do: "
            f"its steps can be restored, and its lineage is {owner.lineage}. Parts on nodes below {owner.copy_of} are "
            "the original's and are not used. If this directory replaces the original and you want to use these parts, "
            f'end the job, write {{"lineage": "{owner.copy_of}"}} to deeppart.json and remove .deeppart.lock',
            DeeppartWarning,
        )


def tell_protection(root: Path, session: str, protection: Protection) -> None:
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
            f"less protection than asked for: {'; '.join(lines)}{problem}. Checkpoints continue with this protection; "
            "protection='strict' refuses to start instead",
            ReducedProtectionWarning,
        )
    elif recovered:
        warn_caller("this run has all the protection that it asks for; the one before had less", DeeppartWarning)
