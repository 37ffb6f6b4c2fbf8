"""Encoding of ``torch.save`` archives by the tensor codec, independent of DCP.

An archive of ``torch.save`` is a ZIP file (APPNOTE 6.3.10) of stored records, each after a local header; lengths follow
the data. The first record, ``data.pkl``, is a pickle that refers to storages by name and dtype; ``data/0`` is the first
storage. Its dtype and offset are found in these bytes by their form: the pickle is not read.

The stream consists of frames, each a head of 20 bytes and the stored bytes (little endian):

    u8 codec, 3 zeros, u32 raw bytes, u32 stored bytes, u64 XXH3-64 of the previous 12 bytes and the stored bytes

The codecs are those of part files: 0 raw, 1 zstd, 2 planes. A frame has at most 16 MiB of raw bytes, and at most as
many stored bytes. The last frame has codec 255, no data, and in place of the lengths the total of raw bytes, so that
truncation and corruption are detected.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

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
#: Shorter frames, such as heads of archives, are compressed with a higher zstd level.
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
#: A class or dtype of torch that a pickle names.
_NAMED = re.compile(rb"ctorch\n(\w+)\n")
#: Storage class in a pickle -> dtype.
_DTYPE_OF = {
    name: str(dtype).removeprefix("torch.") for dtype, name in torch.storage._dtype_to_storage_type_map().items()
}


class EncodingStream:
    """A writable file that writes frames to another one, which it closes.

    It is no class of ``io``, since those flush even when they are discarded after an error.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self._buffer = bytearray()  # an incomplete frame
        self._codec: Any = None  # of the current frame; None before the first one
        self._scratch = bytearray()
        self._raw_bytes = 0
        self._closed = False

    def write(self, data: Any) -> int:
        """Write bytes; returns their number."""
        written = memoryview(data).cast("B")
        rest = written
        while rest.nbytes:
            count = min(rest.nbytes, FRAME_BYTES - len(self._buffer))
            if count == FRAME_BYTES and self._codec is not None:  # without a copy
                self._emit(rest[:count])
            else:
                self._buffer += rest[:count]
                if len(self._buffer) == FRAME_BYTES:
                    self._emit_buffer()
            rest = rest[count:]
        return written.nbytes

    def flush(self) -> None:
        """Nothing: frames are written when they are full."""

    def close(self) -> None:
        """Write the remaining bytes and the last frame."""
        if self._closed:
            return
        self._closed = True
        self._emit_buffer()
        last = _LAST.pack(_END, self._raw_bytes)
        self._output.write(last + _DIGEST.pack(xxhash.xxh3_64_intdigest(last)))
        self._output.close()

    def _emit_buffer(self) -> None:
        buffer, self._buffer = memoryview(self._buffer), bytearray()
        if self._codec is None:
            start, dtype = find_tensor(bytes(buffer[:_MAX_HEAD_BYTES]))
            self._codec = codec("zstd")
            self._emit(buffer[:start])
            buffer = buffer[start:]
            self._codec = codec(dtype)
        self._emit(buffer)

    def _emit(self, raw: memoryview) -> None:
        if not raw.nbytes:
            return
        chosen = codec("zstd:12") if raw.nbytes < _SMALL_FRAME_BYTES else self._codec
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


def find_tensor(head: bytes) -> tuple[int, str]:
    """Offset and dtype of the tensor in an archive that begins with ``head``; (0, "zstd") if they are not found.

    The result only selects codecs, so a wrong guess is harmless.
    """
    header_at = head.rfind(b"PK\x03\x04", 0, max(0, head.find(b"/data/0")))
    if not 0 < header_at <= len(head) - _HEADER.size:
        return 0, "zstd"
    _, name_bytes, extra_bytes = _HEADER.unpack_from(head, header_at)
    named = (name.decode() for name in _NAMED.findall(head, 0, header_at))
    dtypes = (
        name for name in (_DTYPE_OF.get(name, name) for name in named) if type(vars(torch).get(name)) is torch.dtype
    )
    return header_at + _HEADER.size + int(name_bytes) + int(extra_bytes), next(dtypes, "zstd")


def decode_stream(read: Callable[[int], bytes], max_bytes: int, where: str) -> bytes:
    """All raw bytes of a stream, at most ``max_bytes``."""
    found = bytearray()
    while True:
        head = _exactly(read, _HEAD_BYTES, where)
        (digest,) = _DIGEST.unpack_from(head, _HEAD.size)
        front = head[: _HEAD.size]
        if head[0] == _END:
            if xxhash.xxh3_64_intdigest(front) != digest or front != _LAST.pack(_END, len(found)):
                raise _corrupt(f"a last frame for {len(found)} bytes", "a different one", where)
            if read(1):
                raise _corrupt("nothing after the last frame", "more bytes", where)
            return bytes(found)
        codec_id, raw_bytes, stored_bytes = _HEAD.unpack(front)
        if front != _HEAD.pack(codec_id, raw_bytes, stored_bytes):
            raise _corrupt("zeros in the reserved bytes of a frame", "others", where)
        if not 0 < stored_bytes <= raw_bytes <= MAX_FRAME_BYTES:
            raise _corrupt(f"at most {MAX_FRAME_BYTES} bytes in a frame", f"{stored_bytes} of {raw_bytes}", where)
        if len(found) + raw_bytes > max_bytes:
            raise _corrupt(f"at most {max_bytes} bytes", "more", where)
        stored = _exactly(read, stored_bytes, where)
        hasher = xxhash.xxh3_64(front)
        hasher.update(stored)
        if hasher.intdigest() != digest:
            raise _corrupt("bytes that match the digest of their frame", "others", where)
        try:
            found += codec(codec_id).decode(memoryview(stored), raw_bytes)
        except CorruptFileError as error:
            raise _corrupt("a frame that can be decoded", str(error), where) from error


def _exactly(read: Callable[[int], bytes], count: int, where: str) -> bytes:
    data = read(count)
    while len(data) < count:
        more = read(count - len(data))
        if not more:
            raise _corrupt(f"{count} more bytes", f"{len(data)}", where)
        data += more
    return data


def _corrupt(expected: str, found: str, where: str) -> CorruptFileError:
    return CorruptFileError("a stream of the tensor codec is damaged", expected=expected, found=found, where=where)
