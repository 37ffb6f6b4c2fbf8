"""Opens a session: connects the ranks, checks settings, and opens directories.

Everything here is collective and happens once. An error on one rank becomes an error on every rank.
"""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart.access import storage_error
from deeppart.comm import Comm, connect, finish, raise_together, together
from deeppart.config import (
    Config,
    epoch_of_run,
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
from deeppart.mapped import lies_in_memory
from deeppart.mistaken_paths import recognize
from deeppart.model import LEVELS, Level, StepKey
from deeppart.nodes import Protection, check_available, protect
from deeppart.part import Signing, read_key_files
from deeppart.progress import place_at_agent
from deeppart.session.record import Session
from deeppart.session.telemetry import telemetry_files
from deeppart.session.topology import Topology, compare_settings
from deeppart.storage import (
    LINEAGE_NAME,
    NODE_FOLDERS,
    DirectoryOwner,
    MemoryLevel,
    NodeLevel,
    PersistentLevel,
    PosixStore,
    RateLimit,
    Store,
    read_lineage,
)

_WHAT = "starting the checkpointer"
#: How long a rank that cannot start tries to notify the others, which may never arrive.
_REFUSAL_PATIENCE_S = 30.0


def configuration_of(config: Config | None, settings: dict[str, Any], comm: Any) -> Config:
    """The configuration of a new checkpointer; if it is refused, the other ranks are notified."""
    try:
        return resolve_config(config, settings)
    except (DeeppartError, TypeError) as error:
        _notify_refusal(error, comm)
        raise


def _notify_refusal(error: Exception, comm: Any) -> None:
    """Notify the ranks in :func:`open_session` that this one cannot start (collective)."""
    within = _WHAT, _REFUSAL_PATIENCE_S
    with contextlib.suppress(DeeppartError):  # the original error is more important
        main = connect(comm, _REFUSAL_PATIENCE_S)
        try:
            raise_together(main, as_error(error, "the settings were refused"), *within)
        finally:
            main.release()


def open_session(config: Config, comm: Any) -> Session:
    """Connect the ranks and open the directories (collective)."""
    main = connect(comm, config.timeout)
    with ExitStack() as taken:
        taken.callback(main.release)
        session = _open(main, config, taken)
        taken.pop_all()
    return session


def _open(main: Comm, config: Config, taken: ExitStack) -> Session:
    """A session between connected ranks; ``taken`` releases everything acquired so far if the start fails."""
    rank, within = main.rank, (_WHAT, config.timeout)
    if rank == 0:
        warn_settings(config)
    signing = together(main, lambda: _read_keys(config, rank), "reading sign_key_file failed", within)
    topology, processors = compare_settings(main, config, signing, _WHAT)
    node = topology.names[rank]
    (persistent, local), telemetry = together(
        main,
        lambda: (open_roots(config, node, rank), telemetry_files(config, node, rank)),
        "the directories could not be found out",
        within,
    )
    directory, roots = persistent.path, access.Roots(persistent, *([] if local is None else [local]))
    taken.callback(roots.close)
    limit = None if config.flush_bandwidth is None else RateLimit(config.flush_bandwidth / len(topology.mates(rank)))
    store = open_store(directory, limit)
    owner, lineage, identity, found, committed = take_persistent(main, config, directory, store, signing, within)
    if owner is not None:
        taken.callback(owner.close)
    memory = memory_at_agent(lineage)
    shared = shared_directories(main, config, topology, identity, _WHAT, local)
    protection = protect(config, topology.nodes, topology.node_names, shared)
    who = lineage, identity
    levels, earlier = together(
        main,
        lambda: open_levels(rank, topology, who, signing, persistent, local, parity=bool(protection.sets)),
        "opening the levels on this node failed",
        within,
    )
    busy = [level for level in LEVELS if protection.every[level]]
    if config.scrub_bandwidth is not None and (protection.copies or protection.sets):
        busy.append("scrub")
    channels: dict[str, Comm] = {}
    for name in busy:
        channels[name] = finish(main, main.channel(), *within)
        taken.callback(channels[name].release)
    if rank == 0:
        if main.size > 1:
            warn_restarts()
        warn_protection(protection)
        warn_lineage(directory, owner)
    earlier[Level.PERSISTENT] = found
    session = Session(
        config,
        main,
        channels,
        topology,
        lineage,
        identity,
        owner,
        levels,
        PersistentLevel(store, signing),
        protection,
        limit,
        committed,
        earlier,
        processors,
        directory,
        roots,
        telemetry,
        memory,
    )
    if session.leads_directory:
        for level in levels.values():
            level.recycled.drop_foreign()
    if rank == 0 and config.permissions == "unchecked":
        text = 'permissions = "unchecked": any user who may write to the directories decides what is restored'
        warn_caller(text, DeeppartWarning)
    return session


def _read_keys(config: Config, rank: int) -> Signing | None:
    """The keys given to this rank."""
    files = config.sign_key_file or ()
    return read_key_files([expand_directory(each, node=node_name(), rank=rank, job=job_name()) for each in files])


def memory_at_agent(lineage: str) -> MemoryLevel | None:
    """Staging memory of this rank that its agent keeps; None without an agent, or if its directory is on a disk."""
    place = place_at_agent()
    if place is None or not lies_in_memory(place[0]):
        return None
    directory, slot, slots = place
    return MemoryLevel(directory, lineage, slot, slots, say if slot == 0 else lambda text: None)


def open_store(directory: Path, limit: RateLimit | None) -> Store:
    """The store of the persistent level. Its parts bypass the page cache, since they are rarely read soon."""
    return PosixStore(directory, direct=True, limit=limit)


def take_persistent(
    comm: Comm, config: Config, directory: Path, store: Store, signing: Signing | None, within: tuple[str, float]
) -> tuple[DirectoryOwner | None, str, str, set[StepKey], set[StepKey]]:
    """Rank 0 takes the directory and sends its identity to the others (collective).

    Returns:
        The owner, on rank 0; lineage and session; all steps that earlier sessions have left there, and the committed
        ones.
    """
    what, timeout = within
    owner: DirectoryOwner | None = None

    def take() -> bytes | None:
        nonlocal owner
        if comm.rank:
            return None
        job = scheduled_job()
        who = (f"job {job}, " if job else "") + f"process {os.getpid()} on {os.uname().nodename}"
        _check_directory(directory)
        owner = DirectoryOwner(directory, who, config.permissions, epoch_of_run(), signing, store)
        keys = ([astuple(key) for key in each] for each in (owner.steps, owner.committed))
        return json.dumps([owner.lineage, owner.session, *keys]).encode()

    try:
        message = together(comm, take, f"taking persistent_dir {directory} failed", within)
        lineage, session, *keys = json.loads(finish(comm, comm.broadcast(message), what, timeout))
        found, committed_keys = ({StepKey(*key) for key in each} for each in keys)
        return owner, lineage, session, found, committed_keys
    except BaseException:
        if owner is not None:
            owner.close()
        raise


def _check_directory(root: Path) -> None:
    """Refuse a directory inside a checkpoint, in which training would start over."""
    mistaken = recognize(root)
    if mistaken is not None and mistaken.root is not None and root.is_dir():
        raise ConfigError(
            f"impossible persistent_dir: {mistaken.what}",
            found=str(root),
            todo=f"persistent_dir={str(mistaken.root)!r}, and restore(state, step=...) for a step of its own",
        )


def open_roots(config: Config, node: str, rank: int) -> tuple[access.Root, access.Root | None]:
    """``persistent_dir`` and ``local_dir`` of this rank, opened so that others cannot redirect paths below."""

    def root(directory: str, *, on_node: bool) -> access.Root:
        path = expand_directory(directory, node=node, rank=rank, job=job_name())
        return access.Root(path, access.Rules(config.permissions, node=on_node))

    local = None if config.local_dir is None else root(config.local_dir, on_node=True)
    return root(config.persistent_dir, on_node=False), local


def open_levels(
    rank: int,
    topology: Topology,
    identity: tuple[str, str],
    signing: Signing | None,
    persistent: access.Root,
    local: access.Root | None,
    *,
    parity: bool,
) -> tuple[dict[str, NodeLevel], dict[str, set[StepKey]]]:
    """This rank's levels in both directories, and the steps on its node; ``identity``: lineage and session."""
    lineage, session = identity
    node = topology.names[rank]
    found = read_lineage(persistent.path)
    if found != lineage:
        raise StorageError(
            "persistent_dir is not the same directory on every rank",
            expected=f"lineage {lineage}, that of the directory of rank 0",
            found=f"lineage {found} in {persistent.path}",
            where=f"rank {rank} on {node}",
            todo="use a directory on a file system that all nodes share",
        )
    if local is None:
        return {}, {}
    if parity:
        check_available()
    # All levels, even disabled ones: files of earlier runs there have to be found and retired.
    what = (session, local.rules.permissions, signing)
    levels = {name: NodeLevel(local.path, lineage, name, *what) for name in NODE_FOLDERS}
    return levels, {name: level.steps() for name, level in levels.items()}


def shared_directories(
    comm: Comm, config: Config, topology: Topology, session: str, what: str, local: access.Root | None
) -> tuple[tuple[int, int], ...]:
    """Pairs of nodes whose local directories are the same (collective): each writes a mark and looks for others'.

    Best effort: file systems that show files of other hosts only after a while go undetected.
    """
    rank = comm.rank
    if len(topology.nodes) < 2 or not any(topology.directories):
        return ()
    node, prefix = topology.node_of[rank], f".node-{session}-"
    leading = local if local is not None and topology.first_in_directory(rank) == rank else None

    def leave_mark() -> None:
        if leading is not None:
            try:
                leading.make()
                os.close(access.create(leading.path / f"{prefix}{node}"))
            except OSError as refusal:
                raise storage_error("local_dir is not writable", refusal, leading.path) from refusal

    together(comm, leave_mark, "making local_dir failed", (what, config.timeout))
    seen: set[int] = set()
    if leading is not None:
        with contextlib.suppress(OSError):  # the level itself will report it
            names = [name[len(prefix) :] for name in access.names_in(leading.path) if name.startswith(prefix)]
            seen = {int(name) for name in names if name.isdigit()} - {node}
    message = json.dumps([[node, other] for other in sorted(seen)]).encode() if seen else b""
    texts = finish(comm, comm.allgather(message), what, config.timeout)
    if leading is not None:
        with contextlib.suppress(OSError):
            access.remove(leading.path / f"{prefix}{node}")
    return tuple(sorted({(min(pair), max(pair)) for text in texts if text for pair in json.loads(text)}))


def warn_settings(config: Config) -> None:
    """On rank 0: warn of settings from a file that the user has not named."""
    if config.from_file:
        note = "; this keep removes no steps of earlier runs" if "keep" in config.from_file else ""
        say(f"settings from {next(iter(config.from_file.values()))}: {', '.join(config.from_file)}{note}")


def warn_restarts() -> None:
    """On rank 0: warn of torchrun's restarts already at the first start; the next one may not get this far."""
    if restarts := restarts_at_one_store():
        warn_caller(
            f"after a restart by torchrun (--max-restarts={restarts}) torch.distributed.init_process_group() fails "
            "with gloo: it finds the addresses of dead ranks in the store, which torchrun keeps. Start with "
            "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone ...`, on several nodes with `--rdzv-backend="
            "c10d --rdzv-endpoint=HOST:PORT` instead of `--standalone`; not with --master-port "
            "(docs/elastic-torchrun.md)",
            DeeppartWarning,
        )


def warn_lineage(directory: Path, owner: DirectoryOwner | None) -> None:
    """On rank 0: warn that the lineage was unreadable, or the directory is a copy: parts on nodes may not be used."""
    if owner is not None and owner.damage:
        warn_caller(
            f"{directory / LINEAGE_NAME} could not be read ({owner.damage}) and has been written anew, with lineage "
            f"{owner.lineage}: parts on nodes are found if they lie below that name; committed steps always are",
            DeeppartWarning,
        )
    if owner is not None and owner.copy_of:
        warn_caller(
            f"nothing to do: {directory} is a copy of a checkpoint directory, or was restored from a backup. Its steps "
            f"can be restored, and its lineage is {owner.lineage}. Parts on nodes below {owner.copy_of} are the "
            "original's and are not used. If this directory replaces the original and you want to use these parts, "
            f'end the job, write {{"lineage": "{owner.copy_of}"}} to deeppart.json and remove .deeppart.lock',
            DeeppartWarning,
        )


def warn_protection(protection: Protection) -> None:
    """Warn of requested protection that the nodes cannot provide."""
    if lines := protection.shortfalls:
        warn_caller(
            f"less protection than asked for: {'; '.join(lines)}. Checkpoints continue with this protection; "
            "protection='strict' refuses to start instead",
            ReducedProtectionWarning,
        )
