"""What ``torch.save`` has written: a zip archive of stored records, one of which is a pickle that names the others.

    archive/data.pkl | archive/byteorder | archive/data/0 | archive/data/1 | ... | archive/version

(``torch/serialization.py``, ``caffe2/serialize/inline_container.h``). Here the records are found and checked, so that a
few bytes cannot ask for much memory: none may be compressed, none may overlap another.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.files import Readable
from deeppart.part.format import short

PICKLE = "data.pkl"
ZIP_MAGIC = b"PK\x03\x04"
#: Of the pickle: names, shapes and small values.
MOST_PICKLE_BYTES = 1 << 30
_LOCAL_HEADER = struct.Struct("<4s22sHH")
_ENCRYPTED = 1
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A record of an archive.

    Attributes:
        offset, nbytes: its bytes in the file.
        crc: CRC-32 of them.
    """

    offset: int
    nbytes: int
    crc: int


class _Section(io.RawIOBase):
    """A stretch of a file, for ``zipfile``."""

    def __init__(self, file: Readable, offset: int, nbytes: int) -> None:
        self._file, self._offset, self._nbytes, self._at = file, offset, nbytes, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise OSError("a place before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._nbytes - self._at))
        self._file.read_into(self._offset + self._at, view[:count])
        self._at += count
        return count


class Archive:
    """The records of a file, or of a stretch of one.

    Attributes:
        records: by name, without the folder that all are in.
    """

    def __init__(self, file: Readable, offset: int = 0, nbytes: int | None = None, where: str = "") -> None:
        self.file, self.where = file, where or file.path
        self._offset, self._nbytes = offset, file.size if nbytes is None else nbytes
        try:
            with zipfile.ZipFile(_Section(file, offset, self._nbytes)) as archive:
                infos = archive.infolist()
            self.records: Mapping[str, Record] = self._checked(infos)
        except (
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            OSError,
            ValueError,
            struct.error,
            NotImplementedError,
        ) as error:
            raise self._corrupt(f"{type(error).__name__}: {short(str(error))}") from error
        if "constants.pkl" in self.records:
            raise UnsupportedLeafError(
                "this is a TorchScript archive, which is a program",
                where=self.where,
                todo="load it by torch.jit.load if you trust the file, and save the state_dict()",
            )
        if PICKLE not in self.records:
            raise self._corrupt(f"records {short(', '.join(sorted(self.records)))}, and none named {PICKLE}")

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small record."""
        record = self.records.get(name)
        if record is None or record.nbytes > most_bytes:
            raise self._corrupt(f"{name}: {'none' if record is None else f'{record.nbytes} bytes'}")
        data = bytes(self.file.read_at(record.offset, record.nbytes))
        if zlib.crc32(data) != record.crc:
            raise self._corrupt(f"{name}: another CRC-32 than its own")
        return data

    def check(self) -> None:
        """See that every record has the bytes of which its CRC-32 is."""
        for name, record in self.records.items():
            found = 0
            for start in range(0, record.nbytes, _PIECE_BYTES):
                length = min(_PIECE_BYTES, record.nbytes - start)
                found = zlib.crc32(self.file.read_at(record.offset + start, length), found)
            if found != record.crc:
                raise CorruptFileError(
                    "a record of an archive of torch.save is damaged",
                    expected=f"CRC-32 {record.crc:08x}",
                    found=f"{found:08x}",
                    where=f"{self.where}, {short(name)}",
                    todo="take another checkpoint; torch would load this one without a word",
                )

    def _checked(self, infos: list[zipfile.ZipInfo]) -> dict[str, Record]:
        records: dict[str, Record] = {}
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{info.filename}: compressed or encrypted, as torch writes none")
            if info.compress_size != info.file_size or info.header_offset < end:
                raise ValueError(f"{info.filename}: overlaps the record before it")
            start = info.header_offset + _LOCAL_HEADER.size
            if start > self._nbytes:
                raise ValueError(f"{info.filename}: at byte {info.header_offset} of {self._nbytes}")
            header = bytes(self.file.read_at(self._offset + info.header_offset, _LOCAL_HEADER.size))
            magic, _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
            start += name_bytes + extra_bytes
            end = start + info.file_size
            if magic != ZIP_MAGIC or end > self._nbytes:
                raise ValueError(f"{info.filename}: bytes {start} to {end} of {self._nbytes}")
            name = info.filename.partition("/")[2]
            if name in records:
                raise ValueError(f"{info.filename}: stands there twice")
            records[name] = Record(self._offset + start, info.file_size, info.CRC)
        return records

    def _corrupt(self, found: str) -> CorruptFileError:
        return CorruptFileError(
            "this is no archive of torch.save, or a damaged one",
            expected="a zip archive of stored records",
            found=found,
            where=self.where,
            todo="it was not copied or downloaded completely, or something has written over it: fetch it again",
        )
