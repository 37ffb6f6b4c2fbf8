"""Ranks of one node copy from where one of them has read and checked; what they cannot show to be that is sent."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.comm import waiting
from deeppart.errors import DeeppartError, PeerTimeoutError, StorageError
from deeppart.part import RANK_TABLE
from deeppart.recovery import apply, distribute, tables
from deeppart.state.restore import scatter
from tests.mpi.on_nodes import config
from tests.mpi.training_states import PER_RANK, flat_bytes, same, save, training_state

pytestmark = pytest.mark.mpi(min_size=4)

#: What a rank does before it restores; gets the rank and a MonkeyPatch that is undone afterwards.
Before = Callable[[int, pytest.MonkeyPatch], None]


def undisturbed(rank: int, patch: pytest.MonkeyPatch) -> None:
    pass


def cycle(path: str, old: Sequence[Any], rank: int, size: int) -> Any:
    assert path in PER_RANK
    return old[rank % len(old)]


def restored(
    comm: Any, directory: Path, before: Before, node_size: int
) -> tuple[dict[str, Any], tuple[int, int], tuple[str, ...]]:
    """What a restore brings, how many messages with bytes of parts this rank has sent and received, and from where."""
    state = training_state(comm.rank + 100, 0)
    with (
        pytest.MonkeyPatch.context() as patch,
        deeppart.Checkpointer(config(directory, node_size=node_size), comm) as ck,
    ):
        before(comm.rank, patch)
        counts = [counted(patch, ck._comm, name) for name in ("send", "receive_into")]
        assert ck.restore(state, per_rank=cycle) == 3
        return flat_bytes(state), (len(counts[0]), len(counts[1])), ck.explanation


def counted(patch: pytest.MonkeyPatch, channel: Any, name: str) -> list[int]:
    """The ranks that a method of a channel is called with from here on."""
    real, ranks = getattr(channel, name), list[int]()

    def count(buffer: Any, rank: int, tag: int) -> Any:
        ranks.append(rank)
        return real(buffer, rank, tag)

    patch.setattr(channel, name, count)
    return ranks


def save_on(comm: Any, directory: Path, node_size: int) -> dict[str, Any]:
    return save(comm, directory, node_size=node_size)[0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_on_one_node_no_part_is_sent(run_on: Any, in_memory: Path, ranks: int) -> None:
    """Not even what is a rank's own, on another number of ranks than saved it."""
    saved = run_on(3, save_on, in_memory, 4)
    for rank, (found, messages, _) in enumerate(run_on(ranks, restored, in_memory, undisturbed, 4)):
        assert messages == (0, 0)
        assert same(saved[rank % 3], found) == []


def two_nodes(comm: Any, directory: Path) -> tuple[dict[str, Any], tuple[int, int], int]:
    """What a restore brings, its messages, and how many chunks there are of what all ranks share."""
    chunks: list[int] = []
    decomposed = tables._decomposed

    def counting(*what: Any) -> Any:
        found = decomposed(*what)
        chunks.extend(int(each.pieces.chunks_with(each.pieces.spans["table"] != RANK_TABLE).sum()) for each in found)
        return found

    def count(rank: int, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(tables, "_decomposed", counting)

    found, messages, _ = restored(comm, directory, count, 2)
    return found, messages, sum(chunks)


def test_between_two_nodes_each_chunk_goes_once_and_then_on(run_on: Any, in_memory: Path) -> None:
    saved = run_on(4, save_on, in_memory, 2)
    results = run_on(4, two_nodes, in_memory)
    for rank, (found, _, _) in enumerate(results):
        assert same(saved[rank], found) == []
    shared = results[0][2]  # what is a rank's own is where it belongs
    assert shared >= 4
    # Once to the other node, and once on to that rank's mate, who cannot look into its memory.
    assert sum(sent for _, (sent, _), _ in results) == 2 * shared
    assert sum(received for _, (_, received), _ in results) == 2 * shared


def under_another_kernel(rank: int, patch: pytest.MonkeyPatch) -> None:
    if rank == 2:
        patch.setattr(tables, "running_kernel", lambda: "another boot")


def kernel_not_known(rank: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tables, "running_kernel", lambda: "")


def other_files_by_those_names(rank: int, patch: pytest.MonkeyPatch) -> None:
    """After the parts were read, and before rank 1 maps those of others: files with other bytes take their names."""
    mapped = tables._mapped

    def late(place: Any, at: Callable[[str], Path]) -> Any:
        if rank == 1:
            path = Path(place.path)
            other = path.with_suffix(".other")
            other.write_bytes(b"\x5a" * path.stat().st_size)
            kept = path.with_suffix(".kept")
            os.rename(path, kept)
            os.rename(other, path)
            try:
                return mapped(place, at)
            finally:
                os.rename(kept, path)
        return mapped(place, at)

    patch.setattr(tables, "_mapped", late)


def cannot_be_mapped(rank: int, patch: pytest.MonkeyPatch) -> None:
    def refused(place: Any) -> Any:
        raise OSError("no more mappings")

    if rank == 0:
        patch.setattr(tables, "_mapped", refused)


@pytest.mark.parametrize(
    "before", [under_another_kernel, kernel_not_known, other_files_by_those_names, cannot_be_mapped]
)
def test_what_a_rank_cannot_show_to_be_what_was_checked_is_sent(run_on: Any, in_memory: Path, before: Before) -> None:
    saved = run_on(3, save_on, in_memory, 4)
    results = run_on(3, restored, in_memory, before, 4)
    for rank, (found, *_) in enumerate(results):
        assert same(saved[rank], found) == []
    assert sum(sent for _, (sent, _), _ in results) == sum(received for _, (_, received), _ in results) > 0


def taken_away(rank: int, patch: pytest.MonkeyPatch) -> None:
    """Another job retires rank 0's part on the node when rank 1 has copied it, and writes over its file."""
    bring = distribute.Delivery.bring

    def and_then(self: Any, to: Any) -> Any:
        failure = bring(self, to)
        of_mates = [copy for (part, _), copy in self._copies.mine.items() if part == 0 and copy.place.is_on_a_node]
        for copy in of_mates if rank == 1 else ():
            os.rename(copy.file.path, copy.file.path + ".retired")
        return failure

    patch.setattr(distribute.Delivery, "bring", and_then)


def _cut_files(patch: pytest.MonkeyPatch, which: Callable[[Any], bool]) -> None:
    """When all have been checked: to touch their memory would end the process by SIGBUS."""
    find = tables.find_copies

    def cut(ranks: Any, recovered: Any, *rest: Any) -> Any:
        found = find(ranks, recovered, *rest)
        for part in recovered.mine.values():
            if which(part):
                os.truncate(part.place.path, 0)
        return found

    patch.setattr(apply, "find_copies", cut)


def files_are_cut(rank: int, patch: pytest.MonkeyPatch) -> None:
    _cut_files(patch, lambda part: rank == 1 and part.place.is_on_a_node)


def a_mate_gets_an_error(rank: int, patch: pytest.MonkeyPatch) -> None:
    byte_range = tables.NodeCopy.byte_range

    def refused(self: Any, *rest: Any) -> Any:
        if self.place.is_on_a_node:
            raise StorageError("cannot read a part file", errno=5)
        return byte_range(self, *rest)

    if rank == 1:
        patch.setattr(tables.NodeCopy, "byte_range", refused)


@pytest.mark.parametrize(("ranks", "node_size"), [(3, 4), (3, 2), (4, 4)])
@pytest.mark.parametrize(
    ("before", "why"),
    [(taken_away, "removed or replaced while"), (files_are_cut, "part file"), (a_mate_gets_an_error, "cannot read")],
)
def test_what_fails_when_it_is_used_gives_way_to_the_next_source(
    run_on: Any, in_memory: Path, before: Before, why: str, ranks: int, node_size: int
) -> None:
    """While the live state is filled, or before: on 4 ranks what each of 3 had for itself is brought first."""
    saved = run_on(3, save_on, in_memory, node_size)
    for rank, (found, _, lines) in enumerate(run_on(ranks, restored, in_memory, before, node_size)):
        assert same(saved[rank % 3], found) == []
        (taken,) = [line for line in lines if "saved by" in line]
        assert any(why in line for line in lines) and ("partner" in taken or "persistent" in taken), lines


def every_file_fails_once(rank: int, patch: pytest.MonkeyPatch) -> None:
    byte_range, failed = tables.NodeCopy.byte_range, set[str]()

    def refused(self: Any, *rest: Any) -> Any:
        if "part-00000" in self.file.path and self.file.path not in failed:
            failed.add(self.file.path)
            raise StorageError("cannot read a part file", errno=5)
        return byte_range(self, *rest)

    if rank == 1:
        patch.setattr(tables.NodeCopy, "byte_range", refused)


def test_when_no_source_is_left_all_are_read_once_more(run_on: Any, in_memory: Path) -> None:
    """A step that has begun to fill the live state is the only one that may be restored."""
    saved = run_on(3, save_on, in_memory, 4)
    for rank, (found, _, lines) in enumerate(run_on(3, restored, in_memory, every_file_fails_once, 4)):
        assert same(saved[rank], found) == []
        assert any("no other source for part" in line for line in lines), lines


def write_fails(rank: int, patch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, part: int, pieces: Any, data: Any) -> None:
        raise OSError(5, "a page cannot be read")

    if rank == 1:
        patch.setattr(scatter.Scatter, "write", fail)


def no_reader_can_send(rank: int, patch: pytest.MonkeyPatch) -> None:
    """Nor one of the next source: the live state has bytes of the step by then."""
    _cut_files(patch, lambda part: True)


def failing(comm: Any, directory: Path, before: Before, node_size: int) -> tuple[str, list[str]]:
    """What a restore fails with, and what it had waited for until the timeout."""
    in_vain: list[str] = []
    timed_out = waiting._timed_out

    def noted(comm: Any, what: str, waited_s: float) -> PeerTimeoutError:
        in_vain.append(what)
        return timed_out(comm, what, waited_s)

    def disturbed(rank: int, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(waiting, "_timed_out", noted)
        before(rank, patch)

    with warnings.catch_warnings(), pytest.raises(DeeppartError) as caught:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        restored(comm, directory, disturbed, node_size)
    return str(caught.value), in_vain


@pytest.mark.parametrize("node_size", [1, 3])
@pytest.mark.parametrize("before", [write_fails, no_reader_can_send])
def test_what_fails_on_one_rank_ends_the_restore_of_all_at_once(
    run_on: Any, in_memory: Path, before: Before, node_size: int
) -> None:
    """And none waits for what it would have passed on."""
    run_on(3, save_on, in_memory, node_size)
    for text, in_vain in run_on(3, failing, in_memory, before, node_size):
        assert any(each in text for each in ("cannot be read", "cannot read"))
        assert in_vain == []
        assert before is write_fails or "build the state again" in text, "there was no other source"
