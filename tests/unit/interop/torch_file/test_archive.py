"""Archives of torch.save: where the records are, and what a forged table of contents may not do."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.interop.files import ForeignFile
from deeppart.interop.torch_file import PICKLE, Archive


def archive(path: Path, offset: int = 0, nbytes: int | None = None) -> Archive:
    with ForeignFile(path) as file:
        return Archive(file, offset, nbytes)


def test_records_are_found_where_torch_put_them(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(100, dtype=torch.uint8)}, path)
    found = archive(path)
    record = found.records["data/0"]
    assert path.read_bytes()[record.offset : record.offset + record.nbytes] == bytes(range(100))
    whole = path.read_bytes()
    path.write_bytes(b"x" * 500 + whole + b"y" * 500)
    inside = archive(path, 500, len(whole))
    assert inside.records["data/0"].offset == record.offset + 500
    with ForeignFile(path) as file:
        read = Archive(file, 500, len(whole)).read(PICKLE, 1 << 20)
        assert read.startswith(b"\x80\x02")
        with pytest.raises(CorruptFileError):
            Archive(file, 500, len(whole)).read(PICKLE, 5)


def forged(path: Path, *records: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in records:
            made.writestr(name, data)
    return path


def test_zip_bombs(tmp_path: Path) -> None:
    path = forged(tmp_path / "x.pt", ("a/data.pkl", bytes(1 << 24)), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 16
    with pytest.raises(CorruptFileError, match="compressed"):
        archive(path)


def test_records_that_share_bytes(tmp_path: Path) -> None:
    """A thousand names of one gigabyte would ask for a terabyte."""
    path = forged(tmp_path / "x.pt", ("a/data.pkl", b"x"), ("a/data/0", bytes(1000)), ("a/data/1", bytes(1000)))
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    first = data.rindex(b"PK\x01\x02", 0, second)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="overlaps"):
        archive(path)


@pytest.mark.parametrize(("field", "value"), [(20, 1 << 30), (24, 1 << 30), (42, 1 << 30), (42, 7), (8, 1)])
def test_fields_that_contradict_the_file(tmp_path: Path, field: int, value: int) -> None:
    path = forged(tmp_path / "x.pt", ("a/data.pkl", b"x" * 50), ("a/data/0", bytes(1000)))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + field
    data[at : at + (2 if field == 8 else 4)] = struct.pack("<H" if field == 8 else "<I", value)
    path.write_bytes(data)
    with pytest.raises(CorruptFileError):
        archive(path)


@pytest.mark.parametrize("records", [[("a/x", b"")], [("data.pkl", b"")], [("a/data.pkl", b""), ("b/data.pkl", b"")]])
def test_other_archives(tmp_path: Path, records: Any) -> None:
    with pytest.raises(CorruptFileError, match=r"no archive of torch\.save"):
        archive(forged(tmp_path / "x.zip", *records))


def test_programs_are_no_states(tmp_path: Path) -> None:
    path = forged(tmp_path / "x.pt", ("a/data.pkl", b""), ("a/constants.pkl", b""))
    with pytest.raises(UnsupportedLeafError, match="TorchScript"):
        archive(path)


def test_every_byte_of_the_table_of_contents(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([torch.ones(3)], buffer)
    sound, path = buffer.getvalue(), tmp_path / "x.pt"
    refused = 0
    for place in range(sound.index(b"PK\x01\x02"), len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x80]) + sound[place + 1 :])
        try:
            archive(path)
        except (CorruptFileError, UnsupportedLeafError):
            refused += 1
    assert refused > 50  # some bytes say nothing that is read, such as times
