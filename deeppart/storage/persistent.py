"""The persistent level: parts and manifests in a store that all ranks reach.

The manifest is the commit. Rank 0 alone commits and retires; it holds the directory (:mod:`deeppart.storage.owner`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from deeppart.errors import CorruptFileError, MissingError, StorageError
from deeppart.model import Attempt, BaseRecord, Level, StepKey
from deeppart.part import Signing, part_key, step_name
from deeppart.storage.lineage import LINEAGE_NAME, LOST_TODO
from deeppart.storage.manifests import NeededParts, may_be_committed
from deeppart.storage.steps import MANIFEST_NAME, manifest_key, remove_manifest, remove_step
from deeppart.storage.store import Store, Writer


class PersistentLevel:
    """Steps with manifests in a store."""

    name: str = Level.PERSISTENT

    def __init__(self, store: Store, signing: Signing | None = None) -> None:
        self.store, self.signing = store, signing

    def check_mounted(self) -> None:
        """Raise if this is the mount point of a file system that is not mounted: nothing must be written into it, and
        that it is empty says nothing of the checkpoints.
        """
        if self.store.stat(LINEAGE_NAME) is None:
            raise MissingError(
                "persistent_dir has lost its lineage record",
                errno=errno.ENOENT,
                found=os.strerror(errno.ENOENT),
                where=self.store.where(LINEAGE_NAME),
                todo=LOST_TODO,
            )

    def open_part(self, attempt: Attempt, rank: int) -> Writer:
        """A rank's part, to be written."""
        self.check_mounted()
        return self.store.writer(part_key(attempt, rank))

    def commit(self, key: StepKey, manifest: bytes) -> None:
        """Make a step a checkpoint: its manifest appears, complete and durable, or not at all."""
        self.store.put_new(manifest_key(key), manifest)

    def withdraw(self, key: StepKey) -> None:
        """Take a commit of this session back."""
        try:
            self.store.delete(step_name(key), [MANIFEST_NAME])
        except StorageError as error:
            error.summary = "cannot withdraw a commit"
            raise

    def may_be_committed(self, key: StepKey) -> bool:
        """True if a step has a manifest, or if that cannot be found out."""
        return may_be_committed(self.store, key)

    def holds(self, base: BaseRecord, attempt: Attempt, rank: int) -> bool:
        """True if an earlier part of a rank is there, as far as its length tells; False if that cannot be seen."""
        earlier = replace(attempt, step=base.step, sequence=base.sequence)
        try:
            found = self.store.stat(part_key(earlier, rank))
        except (StorageError, CorruptFileError):
            return False
        return found is not None and found.nbytes == base.nbytes

    def remove(self, key: StepKey, needed: NeededParts | None = None) -> bool:
        """Remove a step but for the parts that others need; true if none is left. Its manifest goes first."""
        if needed is None:
            return remove_step(self.store, key)
        remove_manifest(self.store, key)
        needed.forget(key)
        return remove_step(self.store, key, needed.names(key))
