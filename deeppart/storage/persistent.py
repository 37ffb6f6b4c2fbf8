"""The persistent level: parts and manifests in a store that all ranks can access.

The manifest is the commit. Only rank 0 commits and retires; it owns the directory (:mod:`deeppart.storage.owner`).
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
        """Raise MissingError if the directory is an empty mount point, because its file system is not mounted: nothing
        may be written into it, and an empty listing means nothing.
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
        """Begin a rank's part."""
        self.check_mounted()
        return self.store.writer(part_key(attempt, rank))

    def commit(self, key: StepKey, manifest: bytes) -> None:
        """Create a step's manifest atomically and durably, which makes it a checkpoint."""
        self.store.put_new(manifest_key(key), manifest)

    def withdraw(self, key: StepKey) -> None:
        """Withdraw a commit of this session."""
        try:
            self.store.delete(step_name(key), [MANIFEST_NAME])
        except StorageError as error:
            error.summary = "cannot withdraw a commit"
            raise

    def may_be_committed(self, key: StepKey) -> bool:
        """True if a step has a manifest, or if that is unknown."""
        return may_be_committed(self.store, key)

    def holds(self, base: BaseRecord, attempt: Attempt, rank: int) -> bool:
        """True if an earlier part of a rank exists and has its length; False if that is unknown."""
        earlier = replace(attempt, step=base.step, sequence=base.sequence)
        try:
            found = self.store.stat(part_key(earlier, rank))
        except (StorageError, CorruptFileError):
            return False
        return found is not None and found.nbytes == base.nbytes

    def remove(self, key: StepKey, needed: NeededParts | None = None) -> bool:
        """Remove a step, manifest first, but not the parts that others need. Returns true if no part is left."""
        if needed is None:
            return remove_step(self.store, key)
        remove_manifest(self.store, key)
        needed.forget(key)
        return remove_step(self.store, key, needed.names(key))
