"""The handshake: rank 0 takes the persistent directory and tells the others what is in it."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path

from deeppart.comm import Comm, finish
from deeppart.comm.agreement import together
from deeppart.config import Config
from deeppart.config.job import scheduled_job
from deeppart.errors import ConfigError
from deeppart.model import StepKey
from deeppart.storage.manifests import committed_among
from deeppart.storage.mistaken_paths import recognize
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.steps import list_steps


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
    """Refuse a directory that is part of somebody's checkpoint: training would start over inside it."""
    mistaken = recognize(root)
    if mistaken is not None and mistaken.root is not None and root.is_dir():
        raise ConfigError(
            f"impossible persistent_dir: {mistaken.what}",
            found=str(root),
            todo=f"persistent_dir={str(mistaken.root)!r}, and restore(state, step=...) for a step of its own",
        )
