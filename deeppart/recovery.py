"""Recovery: from what survives to verified parts in memory, collectively and without touching the live state.

Every part is read by exactly one rank and every chunk's digest is checked before anyone goes on. A source that turns
out bad gives way to the part's next one; a step that cannot be recovered gives way to the one before; all reasons are
kept for the error or the report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, finish
from deeppart.errors import CorruptFileError, FormatError, RestoreError, StorageError
from deeppart.levels.files import lies_in_memory, step_directory
from deeppart.levels.local import LocalLevel, one_line
from deeppart.levels.persistent import UNFINISHED, PersistentLevel, read_manifests
from deeppart.model import Attempt, PartRecord
from deeppart.part import FileSource, PartReader
from deeppart.restart import Candidate, Committed, Inventory, Read, StoredPart, assign, explain, survey
from deeppart.state.capture import Staging, staging_bytes


@dataclass(slots=True)
class LoadedPart:
    """A part whose encoded chunks are in memory and have been checked.

    Attributes:
        reader: index, spans and meta; its file is closed.
        payload: the encoded chunks, back to back.
        starts: where each chunk begins in ``payload``.
    """

    reader: PartReader
    payload: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]

    def chunk(self, index: int) -> npt.NDArray[np.uint8]:
        """The raw bytes of a chunk; one stored raw is returned where it lies."""
        encoded = self.payload[self.starts[index] : self.starts[index + 1]]
        if int(self.reader.chunks["codec"][index]) == 0:
            return encoded
        return np.frombuffer(self.reader.decode_chunk(index, encoded.data), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A step whose parts are all in memory somewhere.

    Attributes:
        attempt: which checkpoint.
        reads: who holds which part, in part order.
        mine: part number -> part, of those this rank has read.
    """

    attempt: Attempt
    reads: tuple[Read, ...]
    mine: dict[int, LoadedPart]


def take_inventory(
    comm: Comm,
    node_of: tuple[int, ...],
    local: LocalLevel | None,
    persistent: PersistentLevel,
    lineage: str,
    timeout: float,
) -> Inventory:
    """List what every node and the persistent level hold (collective); the same result on every rank.

    Args:
        local: this rank's local level if it is the one to list its directory, otherwise None.

    Raises:
        PeerTimeoutError, RemoteRankError: from the other ranks.
    """
    what = "restore, taking inventory"
    found, problems = local.inventory() if local is not None else ([], [])
    strangers = [part for part in found if part.attempt.lineage != lineage]
    found = [part for part in found if part.attempt.lineage == lineage]
    problems += [f"{part.path}: a part of another lineage, ignored" for part in strangers]
    message = json.dumps([[part.to_json() for part in found], problems]).encode()
    gathered = [json.loads(text) for text in finish(comm, comm.allgather(message), what, timeout)]
    committed_text = json.dumps(_list_committed(persistent)).encode() if comm.rank == 0 else None
    committed, unfinished, damaged = json.loads(finish(comm, comm.broadcast(committed_text), what, timeout))
    return Inventory(
        found=tuple(tuple(StoredPart.from_json(part) for part in parts) for parts, _ in gathered),
        node_of=node_of,
        committed=tuple(
            Committed(Attempt(*identity), directory, tuple(PartRecord(*record) for record in records))
            for identity, directory, records in committed
        ),
        problems=tuple(line for _, lines in gathered for line in lines) + tuple(unfinished),
        damaged=tuple(damaged),
    )


def _list_committed(persistent: PersistentLevel) -> tuple[list[Any], list[str], list[str]]:
    """(committed checkpoints, lines about steps never completed, lines about damaged ones)"""
    try:
        manifests, problems = read_manifests(persistent.root)
    except StorageError as error:
        return [], [], [one_line(error)]
    committed = []
    for step, manifest in sorted(manifests.items()):
        attempt = manifest.attempt
        identity = [attempt.lineage, attempt.session, attempt.sequence, attempt.step, attempt.world_size]
        records = [
            [part.rank, part.file, part.nbytes, part.raw_bytes, part.digest, part.index_digest]
            for part in manifest.parts
        ]
        committed.append([identity, str(step_directory(persistent.root, step)), records])
    lines = {step: f"step {step} (persistent): {reason}" for step, reason in sorted(problems.items())}
    unfinished = [line for step, line in lines.items() if problems[step] == UNFINISHED]
    return committed, unfinished, [line for line in lines.values() if line not in unfinished]


def recover(
    comm: Comm, inventory: Inventory, step: int | None, staging: Staging, timeout: float
) -> tuple[Recovered | None, tuple[str, ...]]:
    """Read the newest recoverable step into memory (collective).

    Args:
        step: only this step; None for the newest.
        staging: memory to read into.

    Returns:
        What was recovered, and a line for every decision and everything passed over on the way. None when no attempt
        is complete at any level and no manifest is damaged: there never was a checkpoint, or all of its storage is
        gone.

    Raises:
        RestoreError: a complete checkpoint, or the one asked for, cannot be recovered; the reasons are listed.
    """
    outlook = survey(inventory, step)
    reasons: list[str] = []
    for candidate in outlook.candidates:
        newer = [number for number in outlook.rejected if number[0] > candidate.attempt.step]
        recovered, lines = _read_candidate(comm, candidate, staging, timeout)
        reasons += lines
        if recovered is not None:
            passed_over = [f"step {number}: {reason}" for number, reason in newer]
            return recovered, (*inventory.damaged, *inventory.problems, *passed_over, *reasons)
    reasons = [*(f"step {number}: {reason}" for number, reason in outlook.rejected), *reasons]
    if step is None and not outlook.candidates and not inventory.damaged:
        return None, (*reasons, *inventory.problems)
    known = sorted({entry.attempt.step for entry in inventory.committed})
    raise RestoreError(
        "no checkpoint can be recovered" if step is None else f"step {step} cannot be recovered",
        found="\n    ".join([*reasons, *inventory.damaged, *inventory.problems][:20]) or "no trace of it at any level",
        where=f"rank {comm.rank}",
        tried="every source of every step listed" if reasons else None,
        todo=f"committed steps: {known[-8:]}" if known else "begin anew, or bring the missing files back",
    )


def _read_candidate(
    comm: Comm, candidate: Candidate, staging: Staging, timeout: float
) -> tuple[Recovered | None, list[str]]:
    """Read all parts, falling back from bad sources; None if a part has no good one. With a line per decision."""
    label = f"step {candidate.attempt.step}"
    lines: list[str] = []
    while True:
        reads = assign(candidate, comm.size)
        mine, failures = _read_mine(comm.rank, candidate.attempt, reads, staging)
        texts = finish(comm, comm.allgather(json.dumps(failures).encode()), f"restore of {label}, reading", timeout)
        failed = [tuple(entry) for text in texts for entry in json.loads(text)]
        if not failed:
            return Recovered(candidate.attempt, reads, mine), [*lines, explain(candidate, reads)]
        lines += [f"{label}: {reason}" for _, _, reason in failed]
        rest = candidate.without([(part, path) for part, path, _ in failed])
        if isinstance(rest, int):
            return None, lines
        candidate = rest


def _read_mine(
    rank: int, attempt: Attempt, reads: tuple[Read, ...], staging: Staging
) -> tuple[dict[int, LoadedPart], list[tuple[int, str, str]]]:
    """Read this rank's parts; failures as (part, path, reason).

    A part that lies in memory already (a local level on tmpfs) is used where it lies; the others go to staging memory.
    """
    assigned = [(read, lies_in_memory(read.source.path)) for read in reads if read.reader == rank]
    mine: dict[int, LoadedPart] = {}
    failures: list[tuple[int, str, str]] = []
    try:
        needed = sum(read.source.nbytes for read, in_memory in assigned if not in_memory)
        memory = staging_bytes(staging.reserve(needed))
    except MemoryError as error:
        return {}, [(read.part, read.source.path, str(error)) for read, _ in assigned]
    at = 0
    for read, in_memory in assigned:
        space = None if in_memory else memory[at : at + read.source.nbytes]
        at += 0 if in_memory else read.source.nbytes
        try:
            mine[read.part] = load_part(read, attempt, space)
        except (FormatError, StorageError) as error:
            failures.append((read.part, read.source.path, one_line(error)))
    return mine, failures


def load_part(read: Read, attempt: Attempt, memory: npt.NDArray[np.uint8] | None) -> LoadedPart:
    """Bring one part into memory and check every chunk.

    Args:
        memory: where its chunks go; None to map the file instead.

    Raises:
        FormatError: it is damaged or not the part wanted.
        StorageError: it cannot be read.
    """
    with FileSource(read.source.path) as source:
        reader = PartReader(
            source,
            where=read.source.path,
            expected_attempt=attempt,
            expected_rank=read.part,
            expected_index_digest=read.source.index_digest,
        )
        starts = np.zeros(len(reader.chunks) + 1, dtype=np.int64)
        np.cumsum(reader.chunks["encoded_length"], out=starts[1:])
        offsets = reader.chunks["offset"].tolist()
        if memory is None:
            first = offsets[0] if offsets else 0  # chunks lie back to back
            payload = np.frombuffer(source.mapped(), dtype=np.uint8)[first : first + int(starts[-1])]
        elif int(starts[-1]) <= memory.size:
            payload = memory[: int(starts[-1])]
        else:
            raise CorruptFileError("a part has grown since it was listed", where=read.source.path)
        for index, offset in enumerate(offsets):
            encoded = payload[int(starts[index]) : int(starts[index + 1])].data
            if memory is not None:
                source.read_into(offset, encoded)
            if int(reader.chunks["codec"][index]) == 0:
                reader.check_chunk(index, encoded)
            else:
                reader.decode_chunk(index, encoded)  # so that nothing live is touched if it does not decode
    return LoadedPart(reader, payload, starts)
