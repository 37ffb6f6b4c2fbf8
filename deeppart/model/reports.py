"""Printable records of what a checkpoint or restore did and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deeppart.model.units import show_bytes, show_seconds

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The report of one level of one checkpoint. ``print`` shows it in a line, with units.

    Attributes:
        state: "off" (not due), "skipped" (``on_busy``), "waiting", "running", "done" or "failed".
        seconds: from the return of ``checkpoint()`` until the level is complete on all ranks; None before that.
        nbytes: bytes this rank wrote there.
        error: the reason why it failed, or None.
        referenced_bytes: unchanged bytes that were stored already, and were not written again.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"epoch": 1}, step=100)
        ...     pending.wait("persistent")
        ...     print(pending.report.levels["persistent"])
        done after ..., ... kB written
    """

    state: str
    seconds: float | None = None
    nbytes: int = 0
    error: str | None = None
    referenced_bytes: int = 0

    def __str__(self) -> str:
        after = "" if self.seconds is None else f" after {show_seconds(self.seconds)}"
        what = [f"{self.state}{after}"]
        if self.nbytes:
            what.append(f"{show_bytes(self.nbytes)} written")
        if self.referenced_bytes:
            what.append(f"{show_bytes(self.referenced_bytes)} unchanged and not written again")
        return ", ".join(what) + (f": {self.error}" if self.error else "")


@dataclass(frozen=True, slots=True)
class Report:
    """The cost of a checkpoint on this rank: a snapshot, complete once every level is.

    ``print`` shows most of it in a few lines, with units, without levels that are off.

    Attributes:
        step: the user's step.
        raw_bytes: bytes of this rank's share.
        per_rank_bytes: those of them that only this rank has; of shards, those of which other ranks had other bytes.
        encoded_bytes: bytes of the share after encoding; 0 while not known.
        blocked_s: seconds ``checkpoint()`` took, waiting included.
        waited_s: those of them spent waiting for an earlier checkpoint (``on_busy="wait"``).
        stages_s: stage -> seconds of this rank: flatten, agree, capture, local, partner, parity, persistent.
        levels: level -> how it went.
        retire_error: the reason why old checkpoints could not be removed, or None.
        retries: how often the persistent part was written again after a transient error.
        diverged: lines about leaves that were equal on all ranks before; see ``ReplicaDivergenceWarning``.
        held_s: seconds for which ``optimizer.step()`` was blocked until the state was captured (``capture="lazy"``).
        compression: level -> lines that say how its part is encoded, and why; for levels complete on this rank.
        reduced: lines about requested partner and parity protection that is not available; see
            ``ReducedProtectionWarning``.
        hanging: storage operations of this rank that have taken more than a second: which, on which path, for how long;
            of all checkpoints in progress, while this one is not finished.

    Example:
        >>> import deeppart, torch
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"weights": torch.ones(1000)}, step=100)
        >>> print(pending.report)
        step 100: training blocked for ...
          share of this rank: 4 kB
          persistent: done after ..., ... kB written
    """

    step: int
    raw_bytes: int = 0
    per_rank_bytes: int = 0
    encoded_bytes: int = 0
    blocked_s: float = 0.0
    waited_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, LevelReport] = field(default_factory=dict)
    retire_error: str | None = None
    retries: int = 0
    diverged: tuple[str, ...] = ()
    compression: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held_s: float = 0.0
    reduced: tuple[str, ...] = ()
    hanging: tuple[str, ...] = ()

    def __str__(self) -> str:
        # Texts of errors have lines of their own.
        return "\n  ".join(line for text in self._texts() for line in text.splitlines())

    def _texts(self) -> Iterator[str]:
        levels = [f"{name}: {level}" for name, level in self.levels.items() if level.state != "off"]
        if not levels:
            yield f"step {self.step}: not due, nothing is saved"
            return
        yield f"step {self.step}: training blocked for {show_seconds(self.blocked_s)}{self._waits()}"
        if self.raw_bytes:
            own = f", {show_bytes(self.per_rank_bytes)} of it per rank" if self.per_rank_bytes else ""
            smaller = 0 < self.encoded_bytes < self.raw_bytes
            encoded = f", {show_bytes(self.encoded_bytes)} when encoded" if smaller else ""
            yield f"share of this rank: {show_bytes(self.raw_bytes)}{own}{encoded}"
        yield from levels
        if self.retries:
            yield f"persistent part written again, after errors that passed: {self.retries} times"
        if self.retire_error:
            yield f"old checkpoints could not be removed: {self.retire_error}"
        yield from (f"reduced: {line}" for line in self.reduced)
        yield from (f"diverged: {line}" for line in self.diverged)
        yield from (f"hanging: {line}" for line in self.hanging)

    def _waits(self) -> str:
        """The waiting times, if they are large enough to show in the units of the report."""
        waited = f", {show_seconds(self.waited_s)} of it for an earlier checkpoint" if self.waited_s >= 1e-3 else ""
        held = f"; optimizer.step() for {show_seconds(self.held_s)}" if self.held_s else ""
        return waited + held


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The outcome of a restore on this rank: ``Checkpointer.restored``. ``print`` shows it in a few lines.

    Paths are those of the live state, as ``deeppart show`` writes them.

    Attributes:
        step: the step restored.
        leaves, values: how many tensors and arrays, and how many small values were restored.
        missing: live items that the checkpoint lacks, and that stay unchanged.
        unexpected: saved items that the live state lacks, and that were left out (``strict``).
        left_out: items of the outermost dict that the live state lacks and that were not requested.
        cast: path -> dtypes in the checkpoint and here, for leaves that were converted (``cast=True``).
        renamed: path in the checkpoint -> path here (``rename``).
        unwrapped: dicts whose names differed by ``module.`` or ``_orig_mod.``.
        loaded_bytes: bytes of the step that all ranks together have read, uncompressed, in whole chunks.
        saved_bytes: bytes of the whole step, uncompressed.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"epoch": 1, "loss": 0.5}, step=100)
        ...     step = checkpointer.restore({"epoch": 0, "best": 9.9}, keys=["epoch", "best"], strict=False)
        >>> print(checkpointer.restored)
        step 100: 0 leaves and 1 value restored
          missing in the checkpoint: best
    """

    step: int
    leaves: int
    values: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    cast: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    unwrapped: tuple[str, ...] = ()
    loaded_bytes: int = 0
    saved_bytes: int = 0

    def __str__(self) -> str:
        def many(count: int, what: str) -> str:
            return f"{count} {what}{'' if count == 1 else 's'}"

        leaves = "1 leaf" if self.leaves == 1 else f"{self.leaves} leaves"
        lines = [f"step {self.step}: {leaves} and {many(self.values, 'value')} restored"]
        if self.loaded_bytes < self.saved_bytes:
            lines.append(f"  read: {show_bytes(self.loaded_bytes)} of {show_bytes(self.saved_bytes)}")
        for what, names in (
            ("missing in the checkpoint", self.missing),
            ("missing in the live state", self.unexpected),
            ("left in the checkpoint", self.left_out),
            ("converted", [f"{path} ({saved} to {live})" for path, (saved, live) in self.cast.items()]),
            ("renamed", [f"{saved} to {live}" for saved, live in self.renamed.items()]),
            ("matched without wrappers", self.unwrapped),
        ):
            if names:
                more = f" ... ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
                lines.append(f"  {what}: {', '.join(names[:_MOST_NAMES])}{more}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The work of scrubbing so far, on this rank.

    Attributes:
        cycles: number of times that everything has been read.
        nbytes: bytes read.
        damaged: number of damaged files that this rank has found.
        repaired: number of times that copies or parity were rebuilt by all ranks.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     print(checkpointer.scrubbed)  # scrub_bandwidth is not set
        nothing read yet
    """

    cycles: int = 0
    nbytes: int = 0
    damaged: int = 0
    repaired: int = 0

    def __str__(self) -> str:
        if self == ScrubReport():
            return "nothing read yet"
        found = f"{self.damaged} found damaged" if self.damaged else "no damage found"
        repaired = f"\n  copies or parity rebuilt by all ranks: {self.repaired} times" if self.repaired else ""
        return f"{show_bytes(self.nbytes)} read by this rank, full rounds: {self.cycles}, {found}{repaired}"
