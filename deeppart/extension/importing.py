"""Writing of a committed step from a state whose bytes are in foreign files.

A job of one process flattens, lays out and describes the state as ``checkpoint()`` does, but captures nothing: chunks
of the part are read from their source while the previous ones are written.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.codec import Chooser
from deeppart.comm import SingleComm
from deeppart.config import Config, check_step
from deeppart.errors import DirectoryInUseError, StateError
from deeppart.extension.foreign import Source
from deeppart.extension.nested import check_tree
from deeppart.model import LIBRARY, Attempt, Manifest
from deeppart.offline import BATCH_BYTES
from deeppart.part import KeyFiles, PartSummary, encode_manifest
from deeppart.save import Agreed, Call, Chunk, Encoders, Encoding, Saver, Workers, WriteBehind, write_chunks
from deeppart.session import Session, StepHistory, open_session
from deeppart.state.capture import ShareLayout, Staging
from deeppart.state.document import PartDocument
from deeppart.state.paths import readable
from deeppart.state.tensors import Array, Bytes, LeafType, flat_bytes, is_flat, leaf_type, new_array
from deeppart.state.tree import FlatState

Progress = Callable[[int, int], None]


SourceOf = Callable[[Array], Source | None]


class Written(NamedTuple):
    """The new step: its number, numbers of leaves and small values, and bytes of the leaves; tied ones count once."""

    step: int
    leaves: int
    values: int
    nbytes: int


def write_step(
    directory: str | os.PathLike[str],
    state: Any,
    source_of: SourceOf,
    *,
    where: str,
    step: int | None = None,
    progress: Progress = lambda done, total: None,
    sign_key_file: KeyFiles = None,
) -> Written:
    """Write a committed step from tensors that are not in memory, a few MiB at a time.

    Args:
        directory: persistent directory; created if missing.
        state: a dict, or another container, of tensors, arrays and small values.
        source_of: returns the source of a tensor's storage, or None for one in memory.
        where: origin of the state, for messages.
        step: step number; None means 0 if the directory has no steps.
        progress: called with the bytes done and the total bytes.
        sign_key_file: key to sign the step with, as ``Config.sign_key_file``.

    Raises:
        StateError: the state is invalid, or ``step`` is required.
        StepExistsError: the step exists. DirectoryInUseError: a job is using the directory.
        ConfigError: the settings or the key are invalid. StorageError: a file cannot be written.
    """
    number = None if step is None else check_step(step, "import")
    if not isinstance(state, (dict, list, tuple)):
        raise StateError(
            "the object to import is no state",
            expected="a dict, or another container, of tensors and values",
            found=type(state).__name__,
            where=where,
        )
    check_tree(state, where)
    with ExitStack() as ending:
        session = open_session(_config(directory, sign_key_file), SingleComm())
        ending.callback(session.close)
        step = _free_step(session, number)
        saver = Saver(session.comm, session.config, Staging(), lambda turn, step, diverged: None, quiet=True)
        ending.callback(saver.close)
        with collection_paused():
            agreed = saver.agree(Call(step, 0, frozenset()), saver.flatten(state), busy=False)
        assert agreed is not None
        ending.callback(saver.release)
        layout, document = saver.describe(agreed)
        attempt = Attempt(session.lineage, session.session, 0, step, 1)
        try:
            summary = _write(session, attempt, layout, document, _Leaves(agreed, source_of), progress)
            _commit(session, attempt, document, summary)
        except BaseException:
            if not session.persistent.may_be_committed(attempt.key):
                session.persistent.remove(attempt.key)
            raise
        return Written(step, len(agreed.layout.types), len(agreed.flat.values), layout.nbytes)


def _config(directory: str | os.PathLike[str], sign_key_file: KeyFiles) -> Config:
    """The settings of the job: only the persistent level, and no compression."""
    settings: dict[str, Any] = {} if sign_key_file is None else {"sign_key_file": sign_key_file}
    return Config(
        persistent_dir=os.fspath(directory),
        local_dir=None,
        every={},
        replicated="all",
        capture="eager",
        compression="none",
        **settings,
    )


def _free_step(session: Session, step: int | None) -> int:
    """The number of the new step."""
    if step is None and session.committed:
        raise StateError(
            "the directory has steps already: the new one needs a number",
            found=f"step {max(key.step for key in session.committed)}",
            where=str(session.directory),
            todo="choose an unused number (--step); restore takes the largest",
        )
    refusal = StepHistory(session, []).refusal_of(step or 0)
    if refusal is not None:
        refusal.todo = "choose an unused step (--step), or another directory"
        raise refusal
    return step or 0


def _write(
    session: Session,
    attempt: Attempt,
    layout: ShareLayout,
    document: PartDocument,
    leaves: _Leaves,
    progress: Progress,
) -> PartSummary:
    """Write the part durably."""
    signing = session.persistent.signing
    encoders = Encoders(0 if signing is None else 1)
    behind, reading = Workers(1, "deeppart-behind"), Workers(1, "deeppart-ahead")
    encoding = Encoding(Chooser("none"), encoders, None, signing)
    file = session.persistent.open_part(attempt, 0)
    try:
        # Buffers for the chunks being encoded, the one being read, and the one being handed over.
        chunks = _read_ahead(leaves.chunks(layout, encoders.most_ahead + 2), reading)
        with WriteBehind(file, behind) as sink, closing(chunks):
            reported = _reporting(chunks, layout.nbytes, progress)
            summary = write_chunks(reported, layout, document, sink, encoding, attempt, 0)
        file.commit()
    except BaseException:
        file.abort()
        raise
    finally:
        behind.close()
        reading.close()
        encoders.close()
    return summary


def _reporting(chunks: Iterator[Chunk], total: int, progress: Progress) -> Iterator[Chunk]:
    """The chunks; each is reported once it has been consumed."""
    done = 0
    for chunk in chunks:
        nbytes = chunk.raw.nbytes
        yield chunk
        done += nbytes
        progress(done, total)


def _commit(session: Session, attempt: Attempt, document: PartDocument, summary: PartSummary) -> None:
    """Commit the step, unless another job has taken over the directory."""
    persistent, owner = session.persistent, session.owner
    assert owner is not None
    owner.check()
    record = summary.record(attempt, 0)
    manifest = Manifest(attempt, owner.clock.now(), LIBRARY, (record,), document.structure(), document.compared)
    persistent.commit(attempt.key, encode_manifest(manifest, persistent.signing))
    try:
        owner.check_commit(attempt.key)
    except DirectoryInUseError:
        persistent.withdraw(attempt.key)
        raise


class _Leaves:
    """Reads chunks of leaves from their sources."""

    def __init__(self, agreed: Agreed, source_of: SourceOf) -> None:
        self._flat: FlatState = agreed.flat
        self._source_of = source_of
        #: Number and bytes of the current leaf that had to be converted to C order.
        self._converted: tuple[int, Bytes] | None = None

    def chunks(self, layout: ShareLayout, buffer_count: int) -> Iterator[Chunk]:
        """The chunks of a share, in ``buffer_count`` buffers in turn."""
        longest = max((plan.length for plan in layout.chunks), default=1)
        buffers = [memoryview(mmap.mmap(-1, longest)) for _ in range(buffer_count)]
        spans = [layout.spans[name].tolist() for name in ("leaf", "start", "length", "raw_offset")]
        rows, first = list(zip(*spans, strict=True)), 0
        for number, plan in enumerate(layout.chunks):
            buffer, end = buffers[number % buffer_count], plan.start + plan.length
            while rows[first][3] + rows[first][2] <= plan.start:
                first += 1
            for leaf, start, length, offset in rows[first:]:
                if offset >= end:
                    break
                low, high = max(offset, plan.start), min(offset + length, end)
                self._read(leaf, start + low - offset, buffer[low - plan.start : high - plan.start])
            yield Chunk(buffer[: plan.length], plan.dtype)

    def _read(self, leaf: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with bytes of a leaf."""
        array = self._flat.data[leaf]
        source = self._source_of(array)
        if source is not None and is_flat(array):
            offset = int(array.storage_offset()) * array.itemsize if isinstance(array, torch.Tensor) else 0
            source.read_into(offset + start, buffer)
            return
        if self._converted is None or self._converted[0] != leaf:
            self._converted = None  # never hold two
            self._refuse_repeats(leaf, array, source)
            self._converted = leaf, flat_bytes(_in_c_order(array, source))
        data = self._converted[1]
        np.frombuffer(buffer, dtype=np.uint8)[:] = data[start : start + buffer.nbytes]
        if start + buffer.nbytes == len(data):
            self._converted = None

    def _refuse_repeats(self, leaf: int, array: Array, source: Source | None) -> None:
        """Reject a large leaf with little stored data, such as an expanded tensor."""
        stored = array.nbytes if source is None else source.nbytes
        if source is None and isinstance(array, torch.Tensor) and array.layout is torch.strided:
            stored = array.untyped_storage().nbytes()
        if array.nbytes > max(stored, BATCH_BYTES):
            raise StateError(
                "a leaf repeats its few bytes, like an expanded tensor, and would be too large when stored in full",
                expected=f"at most {BATCH_BYTES} bytes",
                found=f"{array.nbytes} bytes, of which {stored} are stored",
                where=f"path {readable(self._flat.arrays[leaf].path)}",
                todo="select the other leaves (--keys)",
            )


def _in_c_order(array: Array, source: Source | None) -> Array:
    """An array in C order, with the bytes of its source."""
    if not isinstance(array, torch.Tensor):
        return np.ascontiguousarray(array)
    if source is None:
        return array.detach().resolve_conj().resolve_neg().contiguous()
    storage, made = new_array(LeafType("torch", "uint8", (source.nbytes,))), new_array(leaf_type(array))
    assert isinstance(storage, torch.Tensor) and isinstance(made, torch.Tensor)
    source.read_into(0, flat_bytes(storage).data)
    view = storage[: source.nbytes - source.nbytes % array.itemsize].view(array.dtype)
    return made.copy_(view.as_strided(tuple(array.shape), array.stride(), array.storage_offset()))


_END = object()


def _read_ahead(items: Iterator[Chunk], workers: Workers) -> Generator[Chunk, None, None]:
    """The items of an iterator, in order; each is computed while the one before is used.

    Exceptions of the iterator are raised in place of its item. Close the generator if not all items are taken: it waits
    for the one in progress, which may be reading into memory.
    """
    following = workers.submit(next, items, _END)
    try:
        while (item := following.result()) is not _END:
            following = workers.submit(next, items, _END)
            yield item  # type: ignore[misc]  # not _END
    finally:
        following.exception()
