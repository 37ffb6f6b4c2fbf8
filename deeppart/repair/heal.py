"""Healing: restores the copies and parity of a restored step that were lost with nodes or damaged.

Files that the restore has not read are checked first, and the plan avoids damaged ones. Then there are three phases,
each of which uses the files of the one before and ends with a commit round: parts to their home nodes, copies to other
nodes, parity. Files are created one by one, and an interruption leaves only sound files.
They are written to the directories of the restored attempt, the only directories of another session to which a session
writes: only verified files of that attempt are written there, and they only replace files with other bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deeppart.comm import Comm, Operation, commit_round
from deeppart.errors import CheckpointError, DeeppartError, StorageError
from deeppart.model import MEMORY, Attempt, Level
from deeppart.nodes import Arena, PartFile, Protection, begin_together, encode_sets, exchange_copies
from deeppart.plan.redundancy import ParitySet
from deeppart.plan.restart import Encode, Healing, Inventory, Location, Transfer, Wish, Write, plan_healing
from deeppart.recovery import CheckedPart, Recovered
from deeppart.repair.mending import Required, check_file, put_part
from deeppart.storage import DurableFile, NodeLevel, RateLimit

#: Drives an operation to its end.
Drive = Callable[[Operation[Any]], Any]


class Healer:
    """One rank's share of healing one step."""

    def __init__(
        self, comm: Comm, drive: Drive, node_levels: Mapping[str, NodeLevel], limit: RateLimit | None, arena: Arena
    ) -> None:
        self._comm, self._drive, self._levels, self._limit, self._arena = comm, drive, node_levels, limit, arena

    def heal(self, healing: Healing, attempt: Attempt, parts: Mapping[int, CheckedPart]) -> None:
        """Run all phases (collective)."""

        def to_nodes() -> None:
            problem = self._write(healing.writes, attempt, parts)
            self._transfer(healing.moves, attempt)
            if problem is not None:
                raise problem

        def to_other_nodes() -> None:
            self._transfer(healing.copies, attempt)

        self._phase(to_nodes)
        self._phase(to_other_nodes)
        self._phase(partial(self._encode, healing.encodes, attempt))

    def damaged_files(self, healing: Healing, recovered: Recovered, inventory: Inventory) -> set[Location]:
        """The damaged ones of the files that a plan reads (collective). Files that the restore has read are not
        checked.
        """
        rank = self._comm.rank
        node = inventory.location(rank, "").rank
        read = {(each.part, each.source.path) for each in recovered.reads if each.source.location.rank == node}
        mine = {(each.part, each.path) for each in (*healing.moves, *healing.copies) if each.source == rank}
        for each in healing.encodes:
            stored = zip(each.which.members, each.paths, strict=True)
            mine |= {(member.part, path) for member, path in stored if member.rank == rank and member.part is not None}
        damaged = [
            path
            for part, path in sorted(mine - read)
            if path and not self._is_sound(self._at(path), Required(recovered.attempt, part))
        ]
        reports = self._drive(self._comm.allgather(json.dumps(damaged).encode() if damaged else b""))
        found = ((sender, path) for sender, text in enumerate(reports) if text for path in json.loads(text))
        return {inventory.location(sender, path) for sender, path in found}

    def _is_sound(self, path: Path, required: Required) -> bool:
        try:
            self._check(path, required)
        except Exception:  # of any type: the other ranks wait for the result
            return False
        return True

    def _check(self, path: Path, required: Required) -> PartFile:
        return check_file(path, required, self._levels[Level.LOCAL].signing)

    def _at(self, path: str) -> Path:
        """The path of a file on this node."""
        return self._levels[Level.LOCAL].at(path)

    def _phase(self, work: Callable[[], None]) -> None:
        problem: str | None = None
        try:
            work()
        except Exception as error:  # the other ranks wait for this one in the round
            problem = str(error) if isinstance(error, DeeppartError) else f"{type(error).__name__}: {error}"
        anywhere = self._drive(commit_round(self._comm, "healing", problem, None)).problem
        if anywhere is not None:
            raise CheckpointError("the redundancy of a step could not be rebuilt", found=str(anywhere))

    def _write(self, writes: Sequence[Write], attempt: Attempt, parts: Mapping[int, CheckedPart]) -> Exception | None:
        """Write open parts; returns the first problem. The other parts are written in spite of it."""
        problem = None
        for part in sorted(write.part for write in writes if write.rank == self._comm.rank):
            try:
                self._write_part(part, attempt, parts[part])
            except Exception as error:  # of any type: the other ranks are waiting
                problem = problem or error
        return problem

    def _write_part(self, part: int, attempt: Attempt, opened: CheckedPart) -> None:
        put_part(opened, self._levels[Level.LOCAL].open_part(attempt, part, mend=True))

    def _transfer(self, transfers: Sequence[Transfer], attempt: Attempt) -> None:
        """Send part files to other nodes (collective)."""
        if not transfers:
            return
        rank = self._comm.rank
        parts = {each.part: self._part(attempt, each.part, each.path) for each in transfers if each.source == rank}
        levels = {each.part: each.level for each in transfers if each.target == rank}

        def opened(part: int) -> DurableFile:
            return self._levels[levels[part]].open_part(attempt, part, mend=True)

        self._commit(partial(exchange_copies, self._comm, transfers, parts, opened, self._arena, self._limit))

    def _encode(self, encodes: Sequence[Encode], attempt: Attempt) -> None:
        sets: list[tuple[ParitySet, PartFile | None]] = []
        for each in encodes:
            for member, path in zip(each.which.members, each.paths, strict=True):
                if member.rank == self._comm.rank:
                    mine = None if member.part is None else self._part(attempt, member.part, path)
                    sets.append((each.which, mine))
        opened = partial(self._levels[Level.PARITY].open_parity, mend=True)
        self._commit(partial(encode_sets, self._comm, sets, attempt, opened, self._arena, self._limit))

    def _part(self, attempt: Attempt, part: int, path: str) -> PartFile:
        """Check a part before copies or parity of it are made; a problem is reported by the exchange."""
        file = self._at(path) if path else self._levels[Level.LOCAL].part_path(attempt, part)
        try:
            return self._check(file, Required(attempt, part))
        except Exception as error:  # of any type: the other ranks are waiting
            return PartFile(file, 0, "", "", error)

    def _commit(self, begin: Callable[[], Operation[list[DurableFile]]]) -> None:
        files: list[DurableFile] = self._drive(begin_together(self._comm, begin))
        try:
            for file in files:
                file.commit()
        except StorageError:
            for file in files:
                file.abort()
            raise


def healing_for(
    protection: Protection, recovered: Recovered, inventory: Inventory, damaged: Collection[Location] = ()
) -> Healing:
    """The missing copies and parity of a restored step; none if no redundant level is in use.

    For a step from the memory of dead ranks also local parts, because the next checkpoint overwrites that memory.
    """
    parity = [
        (inventory.node_of[rank], each)
        for rank, files in enumerate(inventory.parity)
        for each in files
        if each.identity.attempt == recovered.attempt and inventory.location(rank, each.path) not in damaged
    ]
    group_size = protection.group_size if protection.sets else 0
    wish = Wish(protection.nodes, bool(protection.copies), group_size, protection.tolerate)
    from_memory = any(read.source.level == MEMORY for read in recovered.reads)
    if not wish.partner and not wish.group_size and not (from_memory and protection.every[Level.LOCAL]):
        return Healing((), (), (), ())
    readers = {read.part: read.reader for read in recovered.reads}
    return plan_healing(recovered.candidate, readers, parity, wish)


def heal_recovered(
    healer: Healer,
    healing: Healing,
    recovered: Recovered,
    inventory: Inventory,
    protection: Protection,
    damaged: Collection[Location] = (),
) -> None:
    """Carry out a plan, or another one if a file that it reads is found damaged (collective).

    ``damaged``: known damaged files, which the plan does not read. Parts without a sound file are skipped, and named in
    an error at the end.
    """
    known = set(damaged)
    while True:
        worse = healer.damaged_files(healing, recovered, inventory)
        if worse <= known:
            break
        known |= worse
        recovered = replace(recovered, candidate=recovered.candidate.without_files(known))
        healing = healing_for(protection, recovered, inventory, known)
    healer.heal(healing, recovered.attempt, recovered.mine)
    if recovered.candidate.lacking:
        parts = ", ".join(map(str, recovered.candidate.lacking))
        raise CheckpointError(
            "the redundancy of a step could not be rebuilt completely",
            found=f"no sound files of parts {parts}: damaged are " + ", ".join(map(str, sorted(known))),
            todo="nothing: the next checkpoint is protected again; what could be rebuilt of this one has been",
        )
