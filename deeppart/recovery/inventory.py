"""The inventory of a restore: the checkpoints on every node and on the persistent level, the same on every rank."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

from deeppart.errors import RestoreError, as_error, lacks_resources, on_ranks, one_line
from deeppart.model import Attempt, PartRecord
from deeppart.part import Signing
from deeppart.plan.restart import Committed, Inventory, StoredParity, StoredPart, on_node
from deeppart.recovery.ranks import Ranks
from deeppart.storage import MemoryLevel, NodeContents, Note, PersistentLevel, read_steps, take_stock

#: Lines of an error about exhausted file descriptors, at most.
_MOST_LINES = 8


def take_inventory(
    ranks: Ranks,
    local: Path | None,
    persistent: PersistentLevel,
    lineage: str,
    memory: MemoryLevel | None = None,
    *,
    newest: bool = False,
) -> Inventory:
    """List the checkpoints of every node and of the persistent level (collective); the same result on every rank.

    ``newest``: of the persistent level down to the newest with a sound manifest.
    """
    comm, node_of, what = ranks.comm, ranks.node_of, f"{ranks.doing}, taking inventory"
    refused: list[str] = []
    stock = _list_node_files(local, memory, lineage, persistent.signing, refused)
    committed_text = json.dumps(_list_committed(persistent, refused, newest)).encode() if comm.rank == 0 else None
    files = [part.to_json() for part in stock.parts], [parity.to_json() for parity in stock.parity]
    notes = stock.lines("remark", "unlisted", "damaged"), stock.lines("refused")
    message = json.dumps([refused, *files, *notes, stock.lines("unlisted", "damaged", "refused")]).encode()
    received = [json.loads(text) for text in ranks.finish(comm.allgather(message), what)]
    if lines := [f"rank {rank}: {line}" for rank, (theirs, *_) in enumerate(received) for line in theirs]:
        raise out_of_resources("what there is to restore cannot be listed", lines, comm.rank)
    gathered = [rest for _, *rest in received]
    if len(set(node_of)) > 1:  # the same path is a different file on each of them
        for rank, (_, _, *texts) in enumerate(gathered):
            for each in texts:
                each[:] = [on_node(line, rank) for line in each]
    committed, unfinished, damaged, unusable, since = json.loads(ranks.finish(comm.broadcast(committed_text), what))
    return Inventory(
        found=tuple(tuple(StoredPart.from_json(part) for part in parts) for parts, *_ in gathered),
        node_of=node_of,
        committed=tuple(
            Committed(Attempt(*identity), directory, tuple(map(PartRecord.from_json, records)), created)
            for identity, directory, records, created in committed
        ),
        problems=tuple(line for _, _, lines, *_ in gathered for line in lines) + tuple(unfinished),
        damaged=tuple(damaged) + tuple(line for *_, refused, _ in gathered for line in refused),
        parity=tuple(tuple(StoredParity.from_json(each) for each in parity) for _, parity, *_ in gathered),
        unusable=tuple((step, reason) for step, reason in unusable),
        unread=tuple(line for *_, unread in gathered for line in unread),
        since=since,
    )


def _list_node_files(
    local: Path | None, memory: MemoryLevel | None, lineage: str, signing: Signing | None, refused: list[str]
) -> NodeContents:
    """The files that this rank lists on its node; none if that fails, which is reported in ``refused``."""
    try:
        found = NodeContents() if local is None else take_stock(local, lineage, signing)
        if memory is not None:
            memory.take_stock(signing, found)
        return found
    except Exception as error:
        line = one_line(as_error(error, f"listing {local or 'staging memory'} failed"))
        refused += [line] if lacks_resources(error) else []
        return NodeContents(notes=[Note("unlisted", line)])


def _list_committed(
    persistent: PersistentLevel, refused: list[str], newest: bool
) -> tuple[list[Any], list[str], list[str], list[tuple[int, str]], int | None]:
    """(committed checkpoints, lines about incomplete steps, lines about damaged ones, damaged steps and reasons,
    the lowest step that was looked for)
    """
    try:
        steps = read_steps(persistent.store, persistent.signing, newest=newest)
        if not steps.committed:
            persistent.check_mounted()
    except Exception as error:  # of any type: the other ranks wait for this list
        line = one_line(as_error(error, f"listing the checkpoints in {persistent.store.where()} failed"))
        refused += [line] if lacks_resources(error) else []
        return [], [], [line], [], None
    committed = []
    for each in steps.committed:
        attempt, records = astuple(each.manifest.attempt), list(map(astuple, each.manifest.parts))
        committed.append([attempt, each.where, records, each.manifest.created])
    unfinished = [f"step {each.key.step} (persistent): {each.reason}" for each in steps.unfinished]
    unusable = [(each.key.step, each.reason) for each in steps.unusable]
    damaged = [f"step {step} (persistent): {reason}" for step, reason in unusable]
    return committed, unfinished, damaged, unusable, steps.since


def out_of_resources(summary: str, lines: list[str], rank: int) -> RestoreError:
    """The error of all ranks if any lacks descriptors, memory or threads: no older checkpoint is restored then."""
    error = RestoreError(
        summary,
        expected="processes that can open and read the files of a checkpoint",
        found="\n    ".join(lines[:_MOST_LINES]),
        todo="give the job's processes more of what they lack (open files: `ulimit -n`; memory), and restore again; "
        "nothing is known to be wrong with the checkpoint",
    )
    return on_ranks(error, rank)
