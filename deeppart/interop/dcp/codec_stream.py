"""The stream that the tensor codec makes of what ``torch.save`` writes, and the way back. Knows nothing of DCP.

What ``torch.save`` writes is a ZIP archive (APPNOTE 6.3.10) of stored records, each behind a local header; lengths come
after the data. ``data.pkl`` comes first: a pickle that refers to storages by name, dtype and length; ``data/0`` is the
first of them. Dtype and place of the tensor are read from that, executing nothing.

Frames, each of a head of 20 bytes and the stored bytes (little endian):

    u8 codec, 3 zeros, u32 raw bytes, u32 stored bytes, u64 XXH3-64 of the 12 bytes before and the stored bytes

The codecs are those of part files: 0 raw, 1 zstd, 2 planes. A frame has at most 16 MiB of raw bytes, and no more stored
ones. The last has codec 255 and no bytes; in place of lengths it has how many raw bytes there were. So a stream that
was cut off, or whose bits have changed, is not mistaken for a sound one.
"""

from __future__ import annotations

import io
import pickletools
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import torch
import xxhash

from deeppart.errors import CorruptFileError
from deeppart.extension import codec

#: What a name in the metadata of a checkpoint says, with the version of the format.
NAME, VERSION = "stream.deeppart-tensor", "1"
DESCRIPTOR = f"{NAME}/{VERSION}"
#: Raw bytes of a frame that is written, and the most of one that is read.
FRAME_BYTES, MOST_FRAME_BYTES = 4 << 20, 16 << 20
#: A tensor begins within so many bytes of a stream, or is not looked for. torch takes about 1100.
_MOST_HEAD_BYTES = 64 << 10
#: Smaller tensors get no frames of their own.
_LEAST_TENSOR_BYTES = 2 << 10
#: What is shorter is compressed as well as zstd can at little cost: beginnings and ends of streams.
_SMALL_FRAME_BYTES = 4 << 10
#: What a codec may need beyond the raw bytes.
_ROOM_BYTES = 256
_RAW, _END = 0, 255
_HEAD = struct.Struct("<B3xII")
_LAST = struct.Struct("<B3xQ")
_DIGEST = struct.Struct("<Q")
_HEAD_BYTES = _HEAD.size + _DIGEST.size
#: Of a local header: signature, what is not needed here, length of the name, length of what follows it.
_HEADER = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_PICKLE, _STORAGE = b"/data.pkl", b"/data/0"
#: Classes that pickles of torch name -> dtypes; quantized ones have no codec.
_DTYPE_OF = {
    f"torch {name}": str(dtype).removeprefix("torch.")
    for dtype, name in torch.storage._dtype_to_storage_type_map().items()
    if not name.startswith("Q")
}
_UNTYPED = "torch.storage UntypedStorage"


@dataclass(slots=True)
class _Stretch:
    """A part of a stream that one codec encodes: so many bytes are left of it."""

    codec: Any
    left: int


class EncodingStream:
    """A file to write to, which writes frames to another one. Closing it closes that one, too.

    Not a class of ``io``: those write what is left even when they are thrown away after an error.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self._waiting = bytearray()  # for what is in the stream to be known, later for a frame to be full
        self._stretches: deque[_Stretch] = deque()  # what is left of each; none as long as that is not known
        self._room = bytearray()
        self._raw_bytes = 0
        self._closed = False

    def write(self, data: Any) -> int:
        """Take bytes; returns how many."""
        view = memoryview(data).cast("B")
        rest = view
        if not self._stretches:
            count = max(0, _MOST_HEAD_BYTES - len(self._waiting))
            self._waiting += view[:count]
            rest = view[count:]
            found = find_tensor(self._waiting)
            if found is not None or len(self._waiting) >= _MOST_HEAD_BYTES:
                self._begin(found)
        if self._stretches:
            self._feed(rest)
        return view.nbytes

    def flush(self) -> None:
        """Nothing: what waits is written when a frame is full."""

    def close(self) -> None:
        """Write what is left, and the end."""
        if self._closed:
            return
        self._closed = True
        if not self._stretches:
            self._begin(None)
        self._emit_waiting()
        last = _LAST.pack(_END, self._raw_bytes)
        self._output.write(last + _DIGEST.pack(xxhash.xxh3_64_intdigest(last)))
        self._output.close()

    def _begin(self, found: SavedTensor | None) -> None:
        """Divide the stream into sections, and the bytes that have arrived into frames."""
        if found is not None and found.nbytes >= _LEAST_TENSOR_BYTES:
            self._stretches += [
                _Stretch(codec("zstd"), found.start),
                _Stretch(codec(found.dtype), found.nbytes),
            ]
        self._stretches.append(_Stretch(codec("zstd"), sys.maxsize))
        begun, self._waiting = self._waiting, bytearray()
        self._feed(memoryview(begun))

    def _feed(self, view: memoryview) -> None:
        while view.nbytes:
            stretch = self._stretches[0]
            count = min(view.nbytes, FRAME_BYTES - len(self._waiting), stretch.left)
            if count == FRAME_BYTES:  # without a copy
                self._emit(view[:count])
            else:
                self._waiting += view[:count]
            view = view[count:]
            stretch.left -= count
            if len(self._waiting) == FRAME_BYTES or not stretch.left:
                self._emit_waiting()
            if not stretch.left:
                self._stretches.popleft()

    def _emit_waiting(self) -> None:
        if self._waiting:
            with memoryview(self._waiting) as raw:
                self._emit(raw)
            self._waiting = bytearray()

    def _emit(self, raw: memoryview) -> None:
        chosen = self._stretches[0].codec
        if raw.nbytes < _SMALL_FRAME_BYTES and chosen.codec_id == codec("zstd").codec_id:
            chosen = codec("zstd:12")
        if len(self._room) < raw.nbytes + _ROOM_BYTES:
            self._room = bytearray(raw.nbytes + _ROOM_BYTES)
        codec_id, stored = chosen.codec_id, chosen.encode(raw, memoryview(self._room))
        if len(stored) >= raw.nbytes:
            codec_id, stored = _RAW, raw
        head = _HEAD.pack(codec_id, raw.nbytes, len(stored))
        hasher = xxhash.xxh3_64(head)
        hasher.update(stored)
        self._output.write(head + _DIGEST.pack(hasher.intdigest()))
        self._output.write(stored)
        self._raw_bytes += raw.nbytes


def decoded_frames(read: Callable[[int], bytes], where: str | None = None) -> Iterator[memoryview | bytes]:
    """The raw bytes of each frame."""
    total = 0
    while True:
        head = _exactly(read, _HEAD_BYTES, where)
        (digest,) = _DIGEST.unpack_from(head, _HEAD.size)
        front = head[: _HEAD.size]
        if head[0] == _END:
            if xxhash.xxh3_64_intdigest(front) != digest or front != _LAST.pack(_END, total):
                raise _corrupt(f"an end after {total} bytes", "another one", where)
            if read(1):
                raise _corrupt("nothing behind the end", "more bytes", where)
            return
        codec_id, raw_bytes, stored_bytes = _HEAD.unpack(front)
        if front != _HEAD.pack(codec_id, raw_bytes, stored_bytes):
            raise _corrupt("zeros in the reserved bytes of a frame", "others", where)
        if not 0 < stored_bytes <= raw_bytes <= MOST_FRAME_BYTES:
            raise _corrupt(f"at most {MOST_FRAME_BYTES} bytes in a frame", f"{stored_bytes} of {raw_bytes}", where)
        stored = _exactly(read, stored_bytes, where)
        hasher = xxhash.xxh3_64(front)
        hasher.update(stored)
        if hasher.intdigest() != digest:
            raise _corrupt("the bytes of which a frame has the digest", "others", where)
        try:
            yield codec(codec_id).decode(memoryview(stored), raw_bytes)
        except CorruptFileError as error:
            raise _corrupt("a frame that can be decoded", str(error), where) from error
        total += raw_bytes


def decoded(data: Any, most_bytes: int, where: str) -> bytes:
    """All raw bytes of a stream."""
    found = bytearray()
    for raw in decoded_frames(io.BytesIO(data).read, where):
        if len(found) + len(raw) > most_bytes:
            raise _corrupt(f"at most {most_bytes} bytes", "more", where)
        found += raw
    return bytes(found)


class DecodingStream(io.RawIOBase):
    """A file to read from, which reads frames from another one."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._frames = decoded_frames(source.read)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes into memory; returns how many, 0 at the end."""
        target = memoryview(buffer).cast("B")
        if not self._rest.nbytes:
            self._rest = memoryview(next(self._frames, b"")).cast("B")
        count = min(target.nbytes, self._rest.nbytes)
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def readall(self) -> bytes:
        """All that is left, without a detour."""
        found = b"".join([self._rest, *self._frames])
        self._rest = memoryview(b"")
        return found


def _exactly(read: Callable[[int], bytes], count: int, where: str | None) -> bytes:
    data = read(count)
    while len(data) < count:
        more = read(count - len(data))
        if not more:
            raise _corrupt(f"{count} more bytes", f"{len(data)}", where)
        data += more
    return data


def _corrupt(expected: str, found: str, where: str | None) -> CorruptFileError:
    return CorruptFileError("a stream of the tensor codec is damaged", expected=expected, found=found, where=where)


# --- the tensor in what torch.save writes ---


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """The only storage of a stream: its first byte there, how many it has, and the name of its dtype."""

    start: int
    nbytes: int
    dtype: str


def find_tensor(head: bytes | bytearray) -> SavedTensor | None:
    """The tensor of a stream whose beginning is ``head``; None if it is not there, or not of a kind that is known.

    A guess that bytes of another kind can mislead, for choosing a codec.
    """
    at = head.find(_STORAGE)
    while at >= 0:
        begin = head.rfind(_SIGNATURE, 0, at)
        data = _data_of(head, begin, _STORAGE) if begin >= 0 else None
        first = _data_of(head, 0, _PICKLE)
        if data is not None and first is not None and first < begin:
            described = _described(bytes(head[first:begin]))
            return None if described is None else SavedTensor(data, *described)
        at = head.find(_STORAGE, at + 1)
    return None


def _data_of(head: bytes | bytearray, at: int, name: bytes) -> int | None:
    """Where the record begins whose local header is at ``at``, if it has a name that ends so."""
    if len(head) < at + _HEADER.size:
        return None
    signature, name_bytes, extra_bytes = _HEADER.unpack_from(head, at)
    end: int = at + _HEADER.size + name_bytes
    if signature != _SIGNATURE or not head[at + _HEADER.size : end].endswith(name):
        return None
    return end + int(extra_bytes)


def _described(pickled: bytes) -> tuple[int, str] | None:
    """Bytes and dtype of the one storage that a pickle refers to; what comes after the pickle does not matter."""
    kind, count, storages = "", 0, 0
    dtype = None
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "BINPERSID":
                storages += 1
                nbytes = count
            elif not storages and isinstance(argument, int) and not opcode.name.endswith(("PUT", "GET", "PROTO")):
                count = argument
            elif opcode.name == "GLOBAL" and not storages:
                kind = str(argument)
            elif opcode.name == "GLOBAL" and _dtype(str(argument).partition(" ")[2]) is not None:
                dtype = str(argument).partition(" ")[2]
    except Exception:  # of whatever kind: these are not the bytes of a pickle
        return None
    if storages != 1:
        return None
    if kind != _UNTYPED:
        dtype = _DTYPE_OF.get(kind)
        nbytes *= _itemsize(dtype)
    return None if dtype is None else (nbytes, dtype)


def _itemsize(dtype: str | None) -> int:
    found = None if dtype is None else _dtype(dtype)
    return 0 if found is None else found.itemsize


def _dtype(name: str) -> torch.dtype | None:
    """A dtype of torch by its name; nothing is imported for it."""
    found = vars(torch).get(name)
    return found if isinstance(found, torch.dtype) else None
