"""The seconds of one checkpoint, and when it is complete: which stages wait for which.

Overlapped, chunks are encoded while others are written, and the flush follows the local file as it grows, all as far as
the node has cores for it; what ends a file follows its last chunk. Serial, one stage begins where the one before ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deeppart.model import REDUNDANT_LEVELS, Level

from .bandwidth_sharing import FloatArray

#: Stages in the order in which tables and timelines show them.
STAGES = ("plan", "capture", "encode", Level.LOCAL, Level.PARTNER, Level.PARITY, Level.PERSISTENT)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Seconds of one checkpoint.

    Attributes:
        plan: planning and agreement, on every rank.
        capture: float64[ranks], the copy of the share; of a lazy call, what is copied after it.
        encode: float64[ranks], with all encoding threads.
        local: float64[ranks], writing the part, without encoding.
        local_end: float64[ranks], of that, what comes after the last chunk: tables, sync, rename, round.
        partner: float64[nodes], sending and storing copies.
        parity: float64[nodes], exchanging, encoding and storing parity.
        persistent: float64[ranks], writing to the file system.
        persistent_end: float64[ranks], of that, what comes after the last chunk.
        commit: from when the parts are on the nodes until the step is committed, at least.
        cores: float64[ranks], where chunks are encoded: that the node's cores need for all its ranks, who encode, write
            and read back at the same time; 0 elsewhere, since the rates of writing were measured with all of that.
        encoded: float64[ranks], bytes of the parts.
        raw: float64[ranks], bytes of the shares.
        files: created on the file system, without the manifest.
        spans: most spans of a rank.
        lazy: true if the copy is made in the background.
        deferring: of a lazy call, guards of what is copied later, and copies of what is small, of the slowest rank.
        limited: from the copy until all that leaves a node has passed the job's own limit, which copies, parity and the
            flush share; 0 without one, or where there are not both.
        waits: true if training waits for all of it; then ``capture`` is the stream of ``torch.save``.
    """

    plan: float
    capture: FloatArray
    encode: FloatArray
    local: FloatArray
    local_end: FloatArray
    partner: FloatArray
    parity: FloatArray
    persistent: FloatArray
    persistent_end: FloatArray
    cores: FloatArray
    encoded: FloatArray
    raw: FloatArray
    files: int
    spans: int
    lazy: bool
    deferring: float = 0.0
    commit: float = 0.0
    limited: float = 0.0
    waits: bool = False

    @property
    def blocked_s(self) -> float:
        """Training waits for so long."""
        if self.waits:
            return self.serial_s()
        return self.plan + (self.deferring if self.lazy else float(self.capture.max()))

    @property
    def stored(self) -> FloatArray:
        """float64[ranks]: from the copy until the part is on the node, encoded on the way."""
        chunks = np.maximum(np.maximum(self.encode, self.cores), self.local - self.local_end)
        return np.where(self.local > 0, chunks + self.local_end, 0.0)

    @property
    def flushed(self) -> FloatArray:
        """float64[ranks]: from the copy until the part is on the file system, encoded and followed on the way."""
        chunks = np.maximum(np.maximum(self.encode, self.cores), self.persistent - self.persistent_end)
        kept_up = self.stored + np.where(self.stored > 0, self.commit, 0.0)
        return np.where(self.persistent > 0, np.maximum(kept_up, chunks + self.persistent_end), self.stored)

    def stages(self) -> dict[str, float]:
        """Stage -> seconds of the slowest."""
        found = {name: getattr(self, name) for name in STAGES[1:]}
        return {"plan": self.plan} | {name: float(times.max(initial=0.0)) for name, times in found.items()}

    def complete(self, *, overlapped: bool = True, flushed: bool = True) -> dict[str, float]:
        """Level -> seconds from the call until it is complete on all ranks; levels that are off are left out."""
        took = self.stages()
        if self.waits:  # the storage takes bytes while others are serialized
            to = {Level.LOCAL: self.local, Level.PERSISTENT: self.persistent}
            return {name: self.plan + float(np.maximum(self.capture, at).max()) for name, at in to.items() if at.any()}
        captured = took["plan"] + took["capture"] + self.deferring
        done: dict[str, float] = {}
        ready, last = captured, ""
        if took[Level.LOCAL]:
            stored = self.stored if overlapped else self.encode + self.local
            ready = done[Level.LOCAL] = captured + float(stored.max())
        for level in REDUNDANT_LEVELS:
            if took[level]:
                ready = done[level] = ready + took[level]
                last = level
        if took[Level.PERSISTENT]:
            if overlapped:
                done[Level.PERSISTENT] = captured + max(float(self.flushed.max()), self.limited)
                if self.limited and flushed:
                    done[last] = max(done[last], captured + self.limited)
            else:
                encode = 0 if took[Level.LOCAL] else self.encode
                done[Level.PERSISTENT] = ready + float((self.persistent + encode).max())
                if took[Level.LOCAL]:
                    done[Level.PERSISTENT] = max(done[Level.PERSISTENT], done[Level.LOCAL] + self.commit)
        return done

    def serial_s(self) -> float:
        """Seconds of all stages, one after the other: what it takes where nothing is done in the background."""
        return max(self.complete(overlapped=False).values(), default=self.plan + float(self.capture.max()))
