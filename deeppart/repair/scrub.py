"""Scrubbing: files on nodes are read again at a low rate, checked, and repaired from other copies.

One thread per rank. The ranks have a sync round every few seconds, so that all work on the same checkpoint, notice at
the same time that one of them closes, and repair damage together. The newest checkpoint that is complete on all nodes
is scrubbed.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deeppart._threads import start_thread
from deeppart.comm import Operation
from deeppart.errors import CheckpointError, CommError, ScrubNotice
from deeppart.model import Attempt, ScrubReport
from deeppart.nodes import Protection
from deeppart.plan.restart import Inventory, Location, Read, on_node, survey
from deeppart.recovery import Ranks, Recovered, check_chunks, read_candidate, take_inventory
from deeppart.repair.heal import Healer, heal_recovered, healing_for
from deeppart.repair.mending import outcome
from deeppart.save import Pipeline
from deeppart.storage import NodeLevel, PersistentLevel, RateLimit, file_problem, is_gone, take_stock

#: Most seconds between sync rounds.
SLICE_S = 2.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The files that a rank scrubs.

    Attributes:
        directory: this rank's ``local_dir``; None without one.
        share, shares: number of this rank's share of the directory's files, and of shares: the ranks of a node that
            have the same directory divide its files.
        leads: true if this rank lists the directory for all of them.
        lineage: of the persistent directory.
        rate: most bytes per second that this rank reads.
    """

    directory: Path | None
    share: int
    shares: int
    leads: bool
    lineage: str
    rate: RateLimit


@dataclass(frozen=True, slots=True)
class _Sync:
    """The state that all ranks know after a sync round.

    Attributes:
        closing: true if a rank is closing.
        newest: the newest checkpoint that all ranks know to be complete.
        everyone_done: true if all ranks have read all of their files.
        damage: (rank, path, reason) for the damage found by ranks that are done.
    """

    closing: bool
    newest: Attempt | None
    everyone_done: bool
    damage: tuple[tuple[int, str, str], ...]


class _Over(Exception):
    """Raised when the files being read are no longer relevant."""


class Scrubber:
    """The scrubbing thread of a rank."""

    def __init__(
        self,
        ranks: Ranks,
        pipeline: Pipeline,
        ground: Ground,
        protection: Protection,
        node_levels: dict[str, NodeLevel],
        persistent: PersistentLevel,
        limit: RateLimit | None,
    ) -> None:
        self._ranks, self._pipeline, self._ground = ranks, pipeline, ground
        self._protection, self._levels, self._persistent = protection, node_levels, persistent
        self._limit = limit
        self._closing = threading.Event()
        self._met_at = 0.0
        self._current: Attempt | None = None
        self._damaged: list[tuple[str, str]] = []
        self._last_sync = _Sync(False, None, False, ())
        self._reported = ""
        self.report = ScrubReport()
        self._thread = start_thread(self._run, "deeppart-scrub", self._failed)

    def close(self, timeout: float) -> None:
        """End the thread on all ranks, after one more sync round."""
        self._closing.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._give_up("it did not end in time")

    @property
    def running(self) -> bool:
        """True if the thread has not ended."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """End the thread without the other ranks."""
        self._closing.set()

    def _give_up(self, why: str) -> None:
        """Release the channel, which no rank can use any longer."""
        self._ranks.comm.abandon(CommError("scrubbing has ended", found=why))

    # --- the thread; every rank has the same sync rounds and draws the same conclusions from them ---

    def _run(self) -> None:
        sync = self._sync(done=False)
        while not sync.closing:
            if sync.newest is not None and self._read_all(sync.newest):
                self._repair_if_there(sync.newest, self._last_sync.damage)
            self._closing.wait(SLICE_S)
            sync = self._sync(done=False)

    def _failed(self, error: BaseException) -> None:
        self._give_up(str(error))  # so that the other ranks no longer wait for this one
        if not self._closing.is_set():
            self._pipeline.call_notes.note(f"scrubbing has ended: {error}", ScrubNotice)

    def _read_all(self, attempt: Attempt) -> bool:
        """Read all files of a checkpoint; False if it became irrelevant before all ranks had finished."""
        self._current, self._damaged = attempt, []
        try:
            for path in self._files(attempt):
                self._check(path)
            while not self._sync_unless_over(done=True).everyone_done:
                self._closing.wait(SLICE_S)
        except _Over:
            return False
        self._note(cycles=1)
        return True

    def _files(self, attempt: Attempt) -> list[Path]:
        """This rank's share of the files of a checkpoint on this node."""
        if self._ground.directory is None:
            return []
        stock = take_stock(self._ground.directory, self._ground.lineage, self._persistent.signing)
        parts = [part for part in stock.parts if part.attempt == attempt]
        paths = [part.path for part in parts]
        paths += [each.path for each in stock.parity if each.identity.attempt == attempt]
        return [self._ranks.at(path) for path in sorted(paths)[self._ground.share :: self._ground.shares]]

    def _check(self, path: Path) -> None:
        problem = file_problem(path, self._persistent.signing, self._pace)
        if problem is not None and not is_gone(path):  # otherwise it has just been retired
            self._damaged.append((str(path), problem))
            self._note(damaged=1)

    def _pace(self, nbytes: int) -> None:
        """Wait until ``nbytes`` may be read, with sync rounds when due."""
        until = time.monotonic() + self._ground.rate.reserve(nbytes)
        while True:
            now = time.monotonic()
            if now - self._met_at >= SLICE_S:
                self._sync_unless_over(done=False)
            if now >= until:
                break
            self._closing.wait(min(until - now, SLICE_S))
        self._note(nbytes=nbytes)

    def _sync_unless_over(self, *, done: bool) -> _Sync:
        sync = self._sync(done=done)
        if sync.closing or sync.newest != self._current:
            raise _Over
        return sync

    def _sync(self, *, done: bool) -> _Sync:
        """Run a sync round (collective)."""
        known = self._pipeline.call_notes.complete()
        damaged = self._damaged if done else []
        status = [self._closing.is_set(), sorted(known), done, damaged]
        sync = self._ranks.comm.allgather(json.dumps(status).encode())
        texts = self._ranks.finish(sync, f"{self._ranks.doing}, sync round")
        self._met_at = time.monotonic()
        statuses = [json.loads(text) for text in texts]
        common = set.intersection(*(set(sequences) for _, sequences, _, _ in statuses))
        self._last_sync = _Sync(
            closing=any(closing for closing, *_ in statuses),
            newest=known[max(common)] if common else None,
            everyone_done=all(each for _, _, each, _ in statuses),
            damage=tuple((rank, path, reason) for rank, (*_, theirs) in enumerate(statuses) for path, reason in theirs),
        )
        return self._last_sync

    def _repair_if_there(self, attempt: Attempt, damage: tuple[tuple[int, str, str], ...]) -> None:
        """Rebuild damaged and missing files of a checkpoint, unless it was retired on a node (collective)."""
        self._pipeline.call_notes.hold(attempt)
        try:
            self._sync_unless_over(done=False)  # raises if it was retired before all ranks held it
            self._repair(attempt, damage)
        except _Over:
            pass
        finally:
            self._pipeline.call_notes.release(attempt)

    def _repair(self, attempt: Attempt, damage: tuple[tuple[int, str, str], ...]) -> None:
        local = self._ground.directory if self._ground.leads else None
        inventory = take_inventory(self._ranks, local, self._persistent, self._ground.lineage)
        repaired = self.report.repaired
        damaged = {inventory.location(rank, path) for rank, path, _ in damage}
        problem = self._repair_from(inventory, attempt, damaged)
        if self._ranks.rank == 0 and (problem or self.report.repaired > repaired):
            found = (
                "; ".join(on_node(reason, rank) for rank, _, reason in damage)
                or "files are missing or cannot be opened"
            )
            text = f"step {attempt.step}: scrubbing found damage: {found}: {outcome('the other copies', problem)}"
            if text != self._reported:  # each cycle finds it again
                self._pipeline.call_notes.note(text, ScrubNotice)
            self._reported = text if problem else ""

    def _repair_from(self, inventory: Inventory, attempt: Attempt, damaged: set[Location]) -> str | None:
        """Returns why it cannot be repaired, or None. Further damage is left to the next cycle."""
        candidates = [each for each in survey(inventory, attempt.step).candidates if each.attempt == attempt]
        if not candidates:
            return "some part has no sound file any more"
        candidate = candidates[0].without_files(damaged)
        if candidate.lacking:
            return f"no sound source for part {candidate.lacking[0]}"
        recovered, lines = read_candidate(self._ranks, candidate, self._check_whole, _is_on_no_node)
        if recovered is None:
            return "; ".join(lines)
        healing = healing_for(self._protection, recovered, inventory, damaged)
        parts = ", ".join(map(str, healing.unprotected))
        unprotected = f"parts {parts} are in persistent_dir alone, referring to earlier steps there" if parts else None
        if not healing:
            return unprotected
        healer = Healer(self._ranks.comm, self._drive, self._levels, self._limit, self._ranks.arena)
        try:
            heal_recovered(healer, healing, recovered, inventory, self._protection, damaged)
        except CheckpointError as error:  # on all ranks; the next cycle tries again
            return str(error)
        self._note(repaired=1)
        return unprotected

    def _check_whole(self, recovered: Recovered) -> Recovered:
        check_chunks(self._ranks, recovered)
        return recovered

    def _drive(self, operation: Operation[Any]) -> Any:
        return self._ranks.finish(operation, f"{self._ranks.doing}, repairing")

    def _note(self, **counts: int) -> None:
        self.report = replace(
            self.report, **{name: getattr(self.report, name) + count for name, count in counts.items()}
        )


def _is_on_no_node(read: Read) -> bool:
    return not read.source.is_on_a_node
