"""A look at what a restore would restore, before it is known what of it is wanted: the documents alone are read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from deeppart.comm.agreement import together
from deeppart.comm.waiting import finish
from deeppart.nodes.exchange.memory import Arena
from deeppart.part import FileSource, PartReader
from deeppart.plan.restart import Candidate, Inventory, assign, survey
from deeppart.recovery.documents import share_documents
from deeppart.recovery.load_part import LoadedPart
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered, recover
from deeppart.recovery.saved import SavedStep, saved_step
from deeppart.session.record import Session
from deeppart.session.stock import take_stock
from deeppart.state.capture.staging import Staging


@dataclass(frozen=True, slots=True)
class Looked:
    """What a restore would restore.

    Attributes:
        inventory: what there was to choose from.
        saved: the step, as this rank would restore it.
    """

    inventory: Inventory
    saved: SavedStep


def look_at(session: Session, step: int | None, staging: Staging, arena: Arena) -> Looked | None:
    """What there is of a step, or of the newest that can be recovered (collective).

    The first of the sources that a restore would take are asked for their documents. If one of them is damaged, or has
    to be rebuilt, the step is recovered as a restore does it, with all of its bytes.
    """
    comm, timeout = session.comm, session.config.timeout
    ranks = Ranks(comm, session.topology.node_of, timeout, session.processors.waiting)
    inventory = take_stock(session, timeout)
    candidates = survey(inventory, step).candidates
    found = _documents_alone(session, candidates[0]) if candidates else None
    if found is None:
        what = (inventory, step, staging, arena, timeout, session.persistent.signing)
        found, _ = recover(comm, *what, session.processors.waiting)
    if found is None:
        return None
    text = found.mine[0].reader.meta if found.reads[0].reader == comm.rank else None
    name = f"restore of step {found.attempt.step}, document"
    first = finish(comm, comm.broadcast(text, found.reads[0].reader), name, timeout)
    documents = share_documents(ranks, found, first)
    found.mine.clear()

    attempt = found.attempt

    def seen() -> SavedStep:
        return saved_step(attempt, documents, comm.rank, comm.size)

    saved = together(comm, seen, "the documents of a step could not be taken in", (name, timeout))
    return Looked(inventory, saved)


def _documents_alone(session: Session, candidate: Candidate) -> Recovered | None:
    """The documents of the parts of a step, from the files that are nearest (collective); None if any of them fails."""
    comm, signing = session.comm, session.persistent.signing
    reads = assign(candidate, comm.size, whole=True)
    mine: dict[int, LoadedPart] = {}
    failed = any(read.source.rebuild is not None for read in reads)
    with ExitStack() as files:
        for read in reads if not failed else ():
            if read.reader == comm.rank:
                try:
                    source = files.enter_context(FileSource(read.source.path))
                    reader = PartReader(
                        source,
                        where=read.source.path,
                        expected_attempt=candidate.attempt,
                        expected_rank=read.part,
                        expected_index_digest=read.source.index_digest,
                        signing=signing,
                    )
                except Exception:  # of whatever kind: the other ranks wait
                    failed = True
                    break
                mine[read.part] = LoadedPart(reader, np.empty(0, dtype=np.uint8), None, chunks=range(0))
    anywhere = comm.maximum(np.array([failed], dtype=np.int64))
    name = f"restore of step {candidate.attempt.step}, documents"
    if finish(comm, anywhere, name, session.config.timeout)[0]:
        return None
    return Recovered(candidate, reads, mine)
