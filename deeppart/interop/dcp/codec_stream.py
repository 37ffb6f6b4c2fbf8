"""Encoding of ``torch.save`` archives by the tensor codec, independent of DCP.

An archive of ``torch.save`` is a ZIP file (APPNOTE 6.3.10) of stored records, each after a local header; lengths follow
the data. The first record, ``data.pkl``, is a pickle that refers to storages by name, dtype and length; ``data/0`` is
the first storage. Dtype and offset of the tensor are parsed from these without executing the pickle.

The stream consists of frames, each a head of 20 bytes and the stored bytes (little endian):

    u8 codec, 3 zeros, u32 raw bytes, u32 stored bytes, u64 XXH3-64 of the previous 12 bytes and the stored bytes

The codecs are those of part files: 0 raw, 1 zstd, 2 planes. A frame has at most 16 MiB of raw bytes, and at most as
many stored bytes. The last frame has codec 255, no data, and in place of the lengths the total of raw bytes, so that
truncation and corruption are detected.
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

#: Name in a checkpoint's metadata, and format version.
NAME, VERSION = "stream.deeppart-tensor", "1"
DESCRIPTOR = f"{NAME}/{VERSION}"
#: Raw bytes of a written frame; upper limit of a frame that is read.
FRAME_BYTES, MAX_FRAME_BYTES = 4 << 20, 16 << 20
#: Where to look for the beginning of the tensor. torch's head takes about 1100 bytes.
_MAX_HEAD_BYTES = 64 << 10
#: Smaller tensors get no separate frames.
_MIN_TENSOR_BYTES = 2 << 10
#: Shorter frames, such as heads and tails of archives, are compressed with a higher zstd level.
_SMALL_FRAME_BYTES = 4 << 10
#: Output space that a codec may need beyond the raw bytes.
_EXTRA_BYTES = 256
_RAW, _END = 0, 255
_HEAD = struct.Struct("<B3xII")
_LAST = struct.Struct("<B3xQ")
_DIGEST = struct.Struct("<Q")
_HEAD_BYTES = _HEAD.size + _DIGEST.size
#: Local header: signature, unused fields, length of the name, length of the extra field.
_HEADER = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_PICKLE, _STORAGE = b"/data.pkl", b"/data/0"
#: Storage class in a pickle -> dtype; quantized dtypes have no codec.
_DTYPE_OF = {
    f"torch {name}": str(dtype).removeprefix("torch.")
    for dtype, name in torch.storage._dtype_to_storage_type_map().items()
    if not name.startswith("Q")
}
_UNTYPED = "torch.storage UntypedStorage"


@dataclass(slots=True)
class _Section:
    """A section of the stream with one codec; ``remaining`` bytes are still to come."""

    codec: Any
    remaining: int


class EncodingStream:
    """A writable file that writes frames to another one, which it closes.

    It is no class of ``io``, since those flush even when they are discarded after an error.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self._buffer = bytearray()  # the head of the stream, later an incomplete frame
        self._sections: deque[_Section] = deque()  # empty until the head has been parsed
        self._scratch = bytearray()
        self._raw_bytes = 0
        self._closed = False

    def write(self, data: Any) -> int:
        """Write bytes; returns their number."""
        view = memoryview(data).cast("B")
        rest = view
        if not self._sections:
            count = max(0, _MAX_HEAD_BYTES - len(self._buffer))
            self._buffer += view[:count]
            rest = view[count:]
            found = find_tensor(self._buffer)
            if found is not None or len(self._buffer) >= _MAX_HEAD_BYTES:
                self._begin(found)
        if self._sections:
            self._feed(rest)
        return view.nbytes

    def flush(self) -> None:
        """Nothing: frames are written when they are full."""

    def close(self) -> None:
        """Write the remaining bytes and the last frame."""
        if self._closed:
            return
        self._closed = True
        if not self._sections:
            self._begin(None)
        self._emit_buffer()
        last = _LAST.pack(_END, self._raw_bytes)
        self._output.write(last + _DIGEST.pack(xxhash.xxh3_64_intdigest(last)))
        self._output.close()

    def _begin(self, found: SavedTensor | None) -> None:
        """Divide the stream into sections, and encode the buffered head."""
        if found is not None and found.nbytes >= _MIN_TENSOR_BYTES:
            self._sections += [_Section(codec("zstd"), found.start), _Section(codec(found.dtype), found.nbytes)]
        self._sections.append(_Section(codec("zstd"), sys.maxsize))
        head, self._buffer = self._buffer, bytearray()
        self._feed(memoryview(head))

    def _feed(self, view: memoryview) -> None:
        while view.nbytes:
            section = self._sections[0]
            count = min(view.nbytes, FRAME_BYTES - len(self._buffer), section.remaining)
            if count == FRAME_BYTES:  # without a copy
                self._emit(view[:count])
            else:
                self._buffer += view[:count]
            view = view[count:]
            section.remaining -= count
            if len(self._buffer) == FRAME_BYTES or not section.remaining:
                self._emit_buffer()
            if not section.remaining:
                self._sections.popleft()

    def _emit_buffer(self) -> None:
        if self._buffer:
            with memoryview(self._buffer) as raw:
                self._emit(raw)
            self._buffer = bytearray()

    def _emit(self, raw: memoryview) -> None:
        chosen = self._sections[0].codec
        if raw.nbytes < _SMALL_FRAME_BYTES and chosen.codec_id == codec("zstd").codec_id:
            chosen = codec("zstd:12")
        if len(self._scratch) < raw.nbytes + _EXTRA_BYTES:
            self._scratch = bytearray(raw.nbytes + _EXTRA_BYTES)
        codec_id, stored = chosen.codec_id, chosen.encode(raw, memoryview(self._scratch))
        if len(stored) >= raw.nbytes:
            codec_id, stored = _RAW, raw
        head = _HEAD.pack(codec_id, raw.nbytes, len(stored))
        hasher = xxhash.xxh3_64(head)
        hasher.update(stored)
        self._output.write(head + _DIGEST.pack(hasher.intdigest()))
        self._output.write(stored)
        self._raw_bytes += raw.nbytes


def decode_frames(read: Callable[[int], bytes], where: str | None = None) -> Iterator[memoryview | bytes]:
    """The raw bytes of each frame."""
    total = 0
    while True:
        head = _exactly(read, _HEAD_BYTES, where)
        (digest,) = _DIGEST.unpack_from(head, _HEAD.size)
        front = head[: _HEAD.size]
        if head[0] == _END:
            if xxhash.xxh3_64_intdigest(front) != digest or front != _LAST.pack(_END, total):
                raise _corrupt(f"a last frame for {total} bytes", "a different one", where)
            if read(1):
                raise _corrupt("nothing after the last frame", "more bytes", where)
            return
        codec_id, raw_bytes, stored_bytes = _HEAD.unpack(front)
        if front != _HEAD.pack(codec_id, raw_bytes, stored_bytes):
            raise _corrupt("zeros in the reserved bytes of a frame", "others", where)
        if not 0 < stored_bytes <= raw_bytes <= MAX_FRAME_BYTES:
            raise _corrupt(f"at most {MAX_FRAME_BYTES} bytes in a frame", f"{stored_bytes} of {raw_bytes}", where)
        stored = _exactly(read, stored_bytes, where)
        hasher = xxhash.xxh3_64(front)
        hasher.update(stored)
        if hasher.intdigest() != digest:
            raise _corrupt("bytes that match the digest of their frame", "others", where)
        try:
            yield codec(codec_id).decode(memoryview(stored), raw_bytes)
        except CorruptFileError as error:
            raise _corrupt("a frame that can be decoded", str(error), where) from error
        total += raw_bytes


def decode_stream(data: Any, max_bytes: int, where: str) -> bytes:
    """All raw bytes of a stream."""
    found = bytearray()
    for raw in decode_frames(io.BytesIO(data).read, where):
        if len(found) + len(raw) > max_bytes:
            raise _corrupt(f"at most {max_bytes} bytes", "more", where)
        found += raw
    return bytes(found)


class DecodingStream(io.RawIOBase):
    """A readable file that decodes the frames of another one."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._frames = decode_frames(source.read)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; returns the number of bytes, 0 at the end."""
        target = memoryview(buffer).cast("B")
        if not self._rest.nbytes:
            self._rest = memoryview(next(self._frames, b"")).cast("B")
        count = min(target.nbytes, self._rest.nbytes)
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def readall(self) -> bytes:
        """The remaining bytes, without copies through small buffers."""
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


# --- the tensor in a torch.save archive ---


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """The only storage of an archive: its offset, size, and dtype name."""

    start: int
    nbytes: int
    dtype: str


def find_tensor(head: bytes | bytearray) -> SavedTensor | None:
    """Find the tensor of an archive that begins with ``head``; None if it is not found or not supported.

    The result only selects a codec, so a wrong guess is harmless.
    """
    name_at = head.find(_STORAGE)
    while name_at >= 0:
        header_at = head.rfind(_SIGNATURE, 0, name_at)
        data = _data_offset(head, header_at, _STORAGE) if header_at >= 0 else None
        first = _data_offset(head, 0, _PICKLE)
        if data is not None and first is not None and first < header_at:
            described = _parse_pickle(bytes(head[first:header_at]))
            return None if described is None else SavedTensor(data, *described)
        name_at = head.find(_STORAGE, name_at + 1)
    return None


def _data_offset(head: bytes | bytearray, header_at: int, suffix: bytes) -> int | None:
    """The offset of a record's data; None unless its local header is complete and its name has the suffix."""
    if len(head) < header_at + _HEADER.size:
        return None
    signature, name_bytes, extra_bytes = _HEADER.unpack_from(head, header_at)
    end: int = header_at + _HEADER.size + name_bytes
    if signature != _SIGNATURE or not head[header_at + _HEADER.size : end].endswith(suffix):
        return None
    return end + int(extra_bytes)


def _parse_pickle(pickled: bytes) -> tuple[int, str] | None:
    """Size and dtype of the only storage that a pickle refers to; data after the pickle are ignored."""
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
    except Exception:  # not a pickle
        return None
    if storages != 1:
        return None
    if kind != _UNTYPED:
        dtype = _DTYPE_OF.get(kind)
        found = None if dtype is None else _dtype(dtype)
        nbytes *= 0 if found is None else found.itemsize
    return None if dtype is None else (nbytes, dtype)


def _dtype(name: str) -> torch.dtype | None:
    """A torch dtype by name."""
    found = vars(torch).get(name)
    return found if isinstance(found, torch.dtype) else None
