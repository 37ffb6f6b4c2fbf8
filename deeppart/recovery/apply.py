"""Restoring: from a recovered step to the live state, collectively.

Order matters: the live state is matched with the structure, per-rank leaves are decided on and user functions are
called before the first live byte changes; any error up to then is raised on every rank and leaves the state as it was.
A source that fails, at whatever moment up to the handing over, is raised as SourcesFailedError on every rank: the same
arrays are filled again then, with what other sources give.
Each step takes what the one before returns: documents, saved step, matched state, mapped values, arrays to fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import numpy as np

from deeppart._gc import collection_paused
from deeppart.comm.agreement import raise_together, together
from deeppart.errors import CommError, DeeppartError, DeeppartWarning, RemoteRankError
from deeppart.model.reports import RestoreReport
from deeppart.recovery.box_delivery import BoxDelivery
from deeppart.recovery.distribute import Distributor, Failure
from deeppart.recovery.documents import share_documents
from deeppart.recovery.matching import Matched, check_step, find_places, match, notices, refused_ties
from deeppart.recovery.narrowing import LiveState, narrowed, with_own_of_all
from deeppart.recovery.old_ranks import Mapped, OldLeaves, bring_old_leaves, map_old_leaves, memory_for_old_leaves
from deeppart.recovery.overlapping import ToFill, arrays_to_fill, check_conflicts, marks, memory_alone
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered, SourcesFailedError, failure_of, gather_failures
from deeppart.recovery.reporting import call_back, report_of, to_cast
from deeppart.recovery.saved import SavedStep, saved_step
from deeppart.recovery.tables import Tables, share_tables
from deeppart.recovery.unread import lacks_bytes
from deeppart.state.document.ties import assign
from deeppart.state.restore.merge import cast_into, put, tie
from deeppart.state.restore.request import Asked
from deeppart.state.restore.scatter import Scatter
from deeppart.state.tree.globs import Replication, Ways
from deeppart.state.tree.leaves import Array

T = TypeVar("T")

_MATCHING = "matching the live state with the checkpoint failed"
_SHARING = "looking for live leaves that share memory failed"
_COMPARING = "live leaves that share some of their memory could not be compared"
_NO_MEMORY = "there is no memory to compare live leaves that share some of theirs"
_HANDING = "handing what was restored to the live state failed"
_CALLING = "a function of the caller failed"
_CALLED_TODO = "everything else has been restored; what the function was to do has not been done on all ranks"
_TODO = "fix what that rank reports and build the state again: it may hold bytes of the checkpoint already"


def restore_state(
    ranks: Ranks,
    recovered: Recovered,
    live: LiveState,
    ways: Ways,
    replicated: str | Mapping[str, str],
    known: SavedStep | None = None,
) -> tuple[RestoreReport, list[DeeppartWarning], list[str]] | None:
    """Write a recovered step into the live state (collective).

    Where it is refused, the parts are dropped: whoever keeps the error, or its traceback, would keep their memory with
    it, which may be locked.
    """
    try:
        return _restore_state(ranks, recovered, live, ways, Replication(replicated), known)
    except DeeppartError as error:
        if not isinstance(error, CommError) or isinstance(error, RemoteRankError):
            recovered.mine.clear()  # otherwise messages may be on their way from there
        raise


def _restore_state(
    ranks: Ranks,
    recovered: Recovered,
    live: LiveState,
    ways: Ways,
    replication: Replication,
    known: SavedStep | None,
) -> tuple[RestoreReport, list[DeeppartWarning], list[str]] | None:
    tables = share_tables(ranks, recovered)
    with closing(tables.copies):
        restoring = _Restoring(ranks, recovered, tables, ways)
        whole = known if known is not None and known.attempt == recovered.attempt else restoring.take_in()
        matched, old = restoring.match(whole, live, replication)
        if restoring.needs_more(matched):
            return None
        mapped = restoring.map_old_ranks(matched, old)
        to_fill = restoring.look_for_overlaps(matched, mapped)
        restoring.write(matched, mapped, to_fill)
    restoring.tell(matched, live.asked)
    report = report_of(matched, tables.loaded_bytes, tables.saved_bytes)
    return report, notices(matched, ranks.comm.size), list(matched.own.names)


class _Restoring:
    """One restore under way: between whom, and of what. Every method is collective."""

    def __init__(self, ranks: Ranks, recovered: Recovered, tables: Tables, ways: Ways) -> None:
        self._ranks, self._recovered, self._tables, self._ways = ranks, recovered, tables, ways
        self._comm, self._timeout = ranks.comm, ranks.timeout
        self._distributor = Distributor(ranks, recovered, tables)
        self._what = f"restore of step {recovered.attempt.step}"
        self._boxes = False

    def take_in(self) -> SavedStep:
        """All of the step, out of the documents of its parts."""
        comm, attempt = self._comm, self._recovered.attempt
        documents = share_documents(self._ranks, self._recovered, self._tables.document)
        return self._together(lambda: saved_step(attempt, documents, comm.rank, comm.size), _MATCHING)

    def match(self, whole: SavedStep, live: LiveState, replication: Replication) -> tuple[Matched, OldLeaves]:
        """Match the live state; and memory for what old ranks had, where it is asked for."""
        comm, flat, request = self._comm, live.flat, live.asked.request
        saved, choice = self._together(lambda: narrowed(whole, flat, request, live.outermost), _MATCHING)
        saved = with_own_of_all(saved, whole, comm, self._what, self._timeout)
        self._together(lambda: check_step(saved, self._tables.indexes, self._ways, comm.size), _MATCHING)
        places = find_places(saved, flat, self._ranks, self._what, replication.in_parts)

        def matched() -> tuple[Matched, OldLeaves]:
            found = match(saved, flat, places, self._ways, comm.rank, cast=request.cast)
            return replace(found, choice=choice), memory_for_old_leaves(found)

        found, old = self._together(matched, _MATCHING)
        if places.boxes:
            self._agree_on_boxes(found)
        raise_together(comm, refused_ties(found, comm, self._what, self._timeout), self._what, self._timeout)
        return found, old

    def needs_more(self, matched: Matched) -> bool:
        """True on all ranks if any of them needs bytes that nobody has read."""
        if not any(index.unread() for index in self._tables.indexes):
            return False
        lacking = np.array([lacks_bytes(matched, self._tables)], dtype=np.int64)
        return bool(self._ranks.finish(self._comm.maximum(lacking), self._what).any())

    def _agree_on_boxes(self, matched: Matched) -> None:
        """What any rank has shards of goes to all ranks box by box: none of it is sent to those who have others."""
        found = np.zeros(len(matched.saved.documents.structure.types) + 1, dtype=np.int64)
        target = matched.target
        split = [index for index in {*target.sharded, *target.created, *target.boxed} if index < len(found) - 1]
        found[split] = 1
        found[-1] = bool(target.boxed)
        everywhere = self._ranks.finish(self._comm.maximum(found), self._what)
        self._boxes = bool(everywhere.any())
        target.boxed |= set(np.flatnonzero(everywhere[:-1]).tolist())

    def map_old_ranks(self, matched: Matched, old: OldLeaves) -> Mapped:
        """Take rank 0's per-rank values, or ask the caller's function for this rank's."""
        comm = self._comm
        failure = None
        if old:
            failure = bring_old_leaves(self._distributor, old)
            self._check_sources(failure)

        def mapped() -> Mapped:
            _raise_any(failure)
            return map_old_leaves(matched, old, comm.rank, comm.size)

        return self._together(mapped, _MATCHING)

    def look_for_overlaps(self, matched: Matched, mapped: Mapped) -> ToFill:
        """Take what is to be filled; live leaves that share memory are brought alone first, and compared."""
        to_fill = self._together(lambda: arrays_to_fill(matched), _SHARING)
        found = self._comm.maximum(marks(matched, to_fill, mapped.own_leaves))
        overlapping = self._ranks.finish(found, self._what)
        if overlapping[-1]:
            replicated = np.flatnonzero(overlapping[:-1]).tolist()
            shared = self._together(lambda: memory_alone(matched, to_fill, replicated), _NO_MEMORY)
            failure = self._bring(shared | to_fill.alone, matched, mapped)
            self._check_sources(failure)

            def compare() -> None:
                _raise_any(failure)
                check_conflicts(matched, to_fill, mapped)

            self._together(compare, _COMPARING)
        return to_fill

    def write(self, matched: Matched, mapped: Mapped, to_fill: ToFill) -> None:
        """Fill the arrays, tie what was tied, hand everything to its containers. The live state changes here."""
        failure = self._bring(to_fill.arrays, matched, mapped)
        if self._boxes:
            delivery = BoxDelivery(self._ranks, self._recovered, self._tables)
            failure = delivery.bring(to_fill.boxes) or failure
        self._check_sources(failure, has_begun=True)

        def hand_over() -> None:
            _raise_any(failure)
            for index, value in mapped.arrays.items():
                assign(to_fill.arrays[index], value)
            self._hand_over(matched, to_fill)

        self._together(hand_over, _HANDING, _TODO)

    def tell(self, matched: Matched, asked: Asked) -> None:
        """Call the caller's functions with what the checkpoint lacks, and with what was left out."""
        if asked.on_missing is not None or asked.on_unexpected is not None:
            self._together(lambda: call_back(matched, asked), _CALLING, _CALLED_TODO)

    def _check_sources(self, failure: Failure | None, *, has_begun: bool = False) -> None:
        """Raise SourcesFailedError if a source failed on any rank, or may have changed since its bytes were checked."""
        problems: list[tuple[int, Exception | None]]
        problems = [(part, loaded.problem()) for part, loaded in self._recovered.mine.items()]
        problems += [(part, copy.problem()) for (part, _), copy in self._tables.copies.mine.items()]
        if failure is not None and failure.part is not None:
            problems.append((failure.part, failure.error))
        reads, rank = self._recovered.reads, self._comm.rank
        mine = [failure_of(reads[part], rank, error) for part, error in problems if error is not None]
        if failed := gather_failures(self._comm, mine, self._what, self._ranks.finish):
            raise SourcesFailedError(failed, has_begun=has_begun)

    def _bring(self, arrays: dict[int, Array], matched: Matched, mapped: Mapped) -> Failure | None:
        """Fill arrays by leaf number: those that are replicated on all ranks, the others on their own."""
        own = {index: array for index, array in arrays.items() if index in mapped.own_leaves}
        shared = {index: array for index, array in arrays.items() if index not in own}
        failure = self._distributor.shared(Scatter(shared))
        if matched.saved.same_world:  # this rank may have to send what others own, though it owns nothing
            failure = self._distributor.own(Scatter(own), matched.saved.shard_leaves) or failure
        return failure

    def _together(self, do: Callable[[], T], failed: str, todo: str | None = None) -> T:
        def without_collections() -> T:
            with collection_paused():
                return do()

        return together(self._comm, without_collections, failed, (self._what, self._timeout), todo)

    def _hand_over(self, matched: Matched, to_fill: ToFill) -> None:
        arrays = to_fill.arrays | to_fill.boxed
        tie(matched.target, arrays)
        cast_into(to_cast(matched, arrays))
        put(matched.target, arrays, matched.flat)


def _raise_any(failure: Failure | None) -> None:
    if failure is not None:
        raise failure.error
