"""What a DCP directory says that it holds: read as data, whatever it names."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from deeppart.errors import CorruptFileError, DeeppartError, RestoreError
from deeppart.interop.dcp.metadata import FileRange, decode_metadata, read_metadata
from deeppart.model import Box
from tests.sampling import examples

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def chunk(*rows: int) -> ChunkStorageMetadata:
    """Rows [first, stop) of a tensor of four columns."""
    first, stop = rows
    return ChunkStorageMetadata(torch.Size([first, 0]), torch.Size([stop - first, 4]))


def tensor(*chunks: ChunkStorageMetadata, rows: int = 6) -> TensorStorageMetadata:
    return TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size([rows, 4]), list(chunks))


def metadata(*chunks: ChunkStorageMetadata, file: str = "__0_0.distcp", **changes: Any) -> Metadata:
    """Of a tensor in chunks, and of a value."""
    places = {MetadataIndex("w", each.offsets): _StorageInfo(file, 100 * n, 90) for n, each in enumerate(chunks)}
    places[MetadataIndex("v")] = _StorageInfo(file, 1000, 50, ["stream.zstd/1"])
    found = Metadata({"w": tensor(*chunks), "v": BytesStorageMetadata()}, {"w": ("m", 0), "v": ("v",)}, places)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


SOUND = metadata(chunk(0, 2), chunk(2, 6))


def decoded(of: Any) -> Any:
    return decode_metadata(pickle.dumps(of), "here")


def test_what_it_holds() -> None:
    found = decoded(SOUND)
    stored = found.tensors["w"]
    assert (stored.dtype, stored.shape) == (torch.bfloat16, (6, 4))
    first, second = Box((0, 0), (2, 4)), Box((2, 0), (4, 4))
    assert dict(stored.chunks) == {first: FileRange("__0_0.distcp", 0, 90), second: FileRange("__0_0.distcp", 100, 90)}
    assert found.values == {"v": FileRange("__0_0.distcp", 1000, 50, ("stream.zstd/1",))}
    assert found.paths == {"w": ("m", 0), "v": ("v",)}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_in_any_protocol(protocol: int) -> None:
    assert decode_metadata(pickle.dumps(SOUND, protocol), "here") == decoded(SOUND)


def test_a_directory_without_metadata(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="no DCP checkpoint, or one that was never completed"):
        read_metadata(tmp_path)


# --- what a file may not do -------------------------------------------------------------------------------------------


class Calls:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    "hostile",
    [
        Calls(os.system, "touch executed"),
        Calls(eval, "open('executed', 'w')"),
        Calls(torch.load, "somewhere"),
        Calls(getattr, 5, "real"),
        Calls(dict, [("a", 1)]),
        torch.ones(3),
        Path,
    ],
)
def test_nothing_else_is_named(hostile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for found in (hostile, metadata(chunk(0, 6), planner_data=hostile), metadata(chunk(0, 6), storage_meta=[hostile])):
        with pytest.raises(CorruptFileError, match="DCP does not use"):
            decoded(found)
    assert not list(tmp_path.iterdir())


def test_nothing_outside_is_referred_to() -> None:
    file = io.BytesIO()
    pickler = pickle.Pickler(file)
    pickler.persistent_id = lambda each: "elsewhere" if type(each) is str else None  # type: ignore[method-assign]
    pickler.dump("x")
    with pytest.raises(CorruptFileError, match="refers to an external object"):
        decode_metadata(file.getvalue(), "here")


def test_a_few_bytes_do_not_fill_all_memory() -> None:
    """What a pickle numbers, it may number as it likes: an array of so many would take 0.5 GB, of the most 64."""
    number = b"\xff\xff\xff\x01"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFileError):
            decode_metadata(b"\x80\x04Nr" + number + b".", "here")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_classes_are_not_changed_for_the_next_one() -> None:
    """A pickle can put attributes into a class that it names."""
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    slots = b"(N(dVpart\nI1\nsVstate\n}Vplanner_data\nI7\nsstb."
    with pytest.raises(CorruptFileError):
        decode_metadata(b"\x80\x02" + name + slots, "here")
    assert decoded(SOUND).paths == {"w": ("m", 0), "v": ("v",)}


@pytest.mark.parametrize(
    "wrong",
    [
        metadata(chunk(0, 2)),
        metadata(chunk(0, 4), chunk(2, 6)),
        metadata(chunk(0, 2), chunk(2, 7)),
        metadata(chunk(0, 6), file="../outside"),
        metadata(chunk(0, 6), file="/etc/passwd"),
        metadata(chunk(0, 6), file=".."),
        metadata(chunk(0, 6), file=b"x"),  # type: ignore[arg-type]
        metadata(chunk(0, 6), storage_data={}),
        metadata(chunk(0, 6), storage_data=None),
        metadata(chunk(0, 6), state_dict_metadata={"w": BytesStorageMetadata(), 5: BytesStorageMetadata()}),
        metadata(chunk(0, 6), state_dict_metadata={"w": chunk(0, 6)}),
        {"w": 5},
        None,
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(CorruptFileError):
        decoded(wrong)


def test_what_other_planners_leave_says_nothing_of_places() -> None:
    for other in (None, [1], {"w": "m", "v": ()}, {"w": ("m", -1), "x": ("x",)}, {"w": ("m", 1.5)}):
        assert decoded(metadata(chunk(0, 6), planner_data=other)).paths == {}


@settings(max_examples=examples(300))
@given(data=st.data())
def test_random_damage_is_an_error_or_says_something_sound(data: st.DataObject) -> None:
    text = bytearray(pickle.dumps(SOUND))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(text), len(text) // 2]))
    try:
        found = decode_metadata(bytes(text[:cut]), "here")
    except DeeppartError:
        return
    for stored in found.tensors.values():
        assert sum(box.elements for box, _ in stored.chunks) == torch.Size(stored.shape).numel()
        assert all(Path(place.file).name == place.file for _, place in stored.chunks)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["key", "outside", "dtype"])
def test_tuples_that_have_no_end(place: str) -> None:
    """Some hundred bytes, of which the hash, or the text, would take for ever: a pair of one pair of one pair ..."""
    pair = b")q\x00" + b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60))
    module = b"torch.distributed.checkpoint.metadata\n"
    made = {
        "key": b"}" + pair + b"K\x01s",
        "outside": pair + b"Q",
        "dtype": b"c"
        + module
        + b"Metadata\n)\x81}(U\x13state_dict_metadata}U\x01xc"
        + module
        + b"TensorStorageMetadata\n)\x81}(U\nproperties"
        + b"c"
        + module
        + b"TensorProperties\n)\x81}U\x05dtype"
        + pair
        + b"sbU\x04sizectorch\nSize\n)\x85RubsU\x0cstorage_data}U\x0cplanner_dataNub",
    }[place]
    with pytest.raises(CorruptFileError) as caught:
        decode_metadata(b"\x80\x02" + made + b".", "here")
    assert "tuple of 2" in str(caught.value)
