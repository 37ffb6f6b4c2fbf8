"""How fast chunks are encoded and decoded within checkpoints.

A codec that is timed in a loop of its own is up to 1.8 times as fast: within a checkpoint its chunks come from memory
that another core has just written, others write and read back at the same time, and cores may share what they compute
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..machine.record import Codec, Machine
from ..timing.restores import MOST_THREADS

#: A codec is taken to be so many times as fast as in the loop, at least and at most: beyond, something else was
#: measured.
_LEAST, _MOST = 0.25, 2.0
#: Chunks are encoded while others are written: where that takes almost as long as all, it says nothing of encoding.
_HIDDEN = 0.95


@dataclass(frozen=True, slots=True)
class Encoded:
    """A compressed checkpoint, and its restore from the node, by medians of the slowest rank.

    Attributes:
        ranks: of the node.
        share_bytes: of each, before encoding.
        share_tensors: of each.
        dtype: of all tensors.
        local_s: from the end of the call until it is on the node, while it goes to the file system, too.
        decode_s: by how much longer a restore takes than that of the same state in as many bytes as are read, raw.
    """

    ranks: int
    share_bytes: int
    share_tensors: int
    dtype: str
    local_s: float
    decode_s: float


def codecs_within(machine: Machine, encoded: Encoded) -> Mapping[str, Codec]:
    """The machine's codecs, as fast as they were within a checkpoint.

    Args:
        machine: with codecs as they are in a loop. What was found for one dtype holds for the others.
    """
    codec = machine.codecs.get(encoded.dtype)
    if codec is None:
        return machine.codecs
    encode, decode = _encode(machine, encoded, codec), _decode(machine, encoded)
    pairs = ((encode, codec.encode), (decode, codec.decode))
    faster = [min(max(found / alone, _LEAST), _MOST) for found, alone in pairs]
    return {
        dtype: replace(each, encode=each.encode * faster[0], decode=each.decode * faster[1])
        for dtype, each in machine.codecs.items()
    }


def _encode(machine: Machine, encoded: Encoded, codec: Codec) -> float:
    """Bytes per second of one thread, with which the model takes as long as was measured (timing/times.py)."""
    local, raw, ranks = machine.local, encoded.share_bytes, encoded.ranks
    tensors_s = encoded.share_tensors * machine.crowding(ranks) * local.tensor
    chunks_s = encoded.local_s - local.file - tensors_s
    written_s = raw * codec.ratio * max(1 / local.rank_write, ranks / local.write)
    if chunks_s * _HIDDEN <= written_s:
        return codec.encode
    # A thread's seconds for each byte: as many as make either the threads or the cores take so long.
    moving = codec.ratio * (1 / local.work + 1 / machine.persistent.work)
    by_threads = chunks_s * machine.encoding_threads(ranks) / raw
    by_cores = chunks_s * machine.cores / (ranks * raw) - moving
    return _less(min(by_threads, by_cores), (1 + codec.ratio) / machine.memory.hash)


def _decode(machine: Machine, encoded: Encoded) -> float:
    """The same of a restore (timing/restores.py)."""
    threads = min(MOST_THREADS, machine.cores / encoded.ranks)
    return _less(encoded.decode_s * threads / encoded.share_bytes, 1 / machine.memory.hash)


def _less(seconds: float, digests: float) -> float:
    """Bytes per second, without the digests of each byte."""
    return 1 / max(seconds - digests, seconds / 4, 1e-15)
