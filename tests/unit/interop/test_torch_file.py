"""Files of torch.save: what torch.load(weights_only=True) gives, what is damaged or hostile, and exports."""

from __future__ import annotations

import argparse
import enum
import io
import os
import pickle
import zipfile
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import (
    CorruptFileError,
    DeeppartError,
    StateError,
    StorageError,
    UnsupportedLeafError,
)
from deeppart.extension.export import export
from deeppart.interop import load
from deeppart.interop.torch_file import TorchWriter
from deeppart.offline import reading as reading_module
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.states import difference
from tests.tensor_kinds import KINDS, coo, csr, quantized, two
from tests.unit.cli_support import flip, part_path
from tests.unit.interop.making import bits, saved, training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


class Anything:
    """Of no kind that ``weights_only`` knows."""


def written(tmp_path: Path, state: Any) -> Path:
    torch.save(state, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def test_what_people_load(tmp_path: Path) -> None:
    more = {"set": {1, 2}, "size": torch.Size([2]), "raw": b"\xff", "dtype": torch.int8}
    made_of_others = {"coo": coo(), "csr": csr(), "quantized": quantized()}
    path = written(tmp_path, training() | more | made_of_others)
    found, theirs = load(path), torch.load(path, weights_only=True)
    assert found.pop("set") == theirs.pop("set") == {1, 2}
    assert difference(theirs, found) is None
    assert found["model"]._metadata == theirs["model"]._metadata
    addresses = {found[name].untyped_storage().data_ptr() for name in ("weight", "tied", "turned", "rows")}
    assert len(addresses) == 1 and found["turned"].stride() == (1, 5)


def test_the_format_before_1_6_is_refused(tmp_path: Path) -> None:
    torch.save(training(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UnsupportedLeafError, match=r"torch before 1\.6"):
        load(tmp_path / "x.pt")


def test_a_loaded_state_is_a_copy(tmp_path: Path) -> None:
    path = written(tmp_path, {"w": torch.ones(1000), "coo": coo()})
    found = load(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert bool((found["w"] == 1).all())


def test_what_only_unpickling_could_make_is_named(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "x": Anything()}, tmp_path / "x.pt")
    with pytest.raises(UnsupportedLeafError, match="only unpickling could create") as caught:
        load(tmp_path / "x.pt")
    assert "Anything" in (caught.value.found or "")
    with pytest.raises(UnsupportedLeafError) as caught:
        load(written(tmp_path, {"x": np.ones(2)}))
    assert "_reconstruct" in (caught.value.found or "")


@pytest.mark.parametrize("new", [True, False])
def test_nothing_is_executed(tmp_path: Path, new: bool) -> None:
    class Executes:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save([torch.ones(2), Executes()], tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(DeeppartError):
        load(tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Executes(), 2))
    with pytest.raises(DeeppartError):
        load(tmp_path / "y.pt")
    assert not (tmp_path / "executed").exists()


def with_pickle(path: Path, data: bytes, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a/data.pkl", data)
        made.writestr("a/version", b"3\n")
        for name, content in records.items():
            made.writestr(f"a/data/{name[1:]}", content)
    return path


def pickled(elements: int, offset: int = 0, shape: tuple[int, ...] = (2,), stride: tuple[int, ...] = (1,)) -> bytes:
    """Of a tensor over storage 0, whatever it says of itself."""

    class Storage:
        pass

    class Rebuilt:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, shape, stride, False, {})

    class Pickler(pickle._Pickler):
        def persistent_id(self, item: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", elements) if isinstance(item, Storage) else None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(Rebuilt())
    return buffer.getvalue()


def test_storages_that_are_not_there_or_too_short(tmp_path: Path) -> None:
    assert load(with_pickle(tmp_path / "x.pt", pickled(2), _0=bytes(8))).tolist() == [0, 0]
    for elements, content in ((-1, b""), (0, bytes(8))):
        with pytest.raises(CorruptFileError):
            load(with_pickle(tmp_path / "x.pt", pickled(elements), _0=content))
    with pytest.raises(CorruptFileError):
        load(with_pickle(tmp_path / "x.pt", pickled(2), _1=bytes(8)))


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [(1, (2,), (1,)), (0, (3,), (1,)), (0, (2,), (5,)), (-1, (1,), (1,)), (0, (1 << 62,), (1,)), (0, (2,), (-1,))],
)
def test_views_that_reach_beyond_their_storage(tmp_path: Path, offset: int, shape: Any, stride: Any) -> None:
    with pytest.raises(CorruptFileError):
        load(with_pickle(tmp_path / "x.pt", pickled(2, offset, shape, stride), _0=bytes(8)))


def test_damaged_bytes(tmp_path: Path) -> None:
    """Every byte of a tensor has a checksum, at which torch.load does not look."""
    path = written(tmp_path, {"w": torch.arange(1000.0), "v": 5})
    sound = path.read_bytes()
    expected = load(path)
    noticed = 0
    for place in np.linspace(0, len(sound) - 1, 150, dtype=int).tolist():
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            assert difference(expected, load(path)) is None, place
        except DeeppartError:
            noticed += 1
    assert noticed > 100


def test_files_that_are_short_or_gone(tmp_path: Path) -> None:
    path = written(tmp_path, {"w": torch.arange(1000.0)})
    data = path.read_bytes()
    for length in (0, 1, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptFileError):
            load(path, form="torch")
    path.unlink()
    with pytest.raises(StorageError):
        load(path, form="torch")


def test_a_list_in_itself_and_one_in_many_places_end(tmp_path: Path) -> None:
    inside: list[Any] = [torch.ones(2)]
    inside.append(inside)
    many: list[Any] = [torch.full((2,), 3.0)]
    for _ in range(60):
        many = [many, many]
    found = load(written(tmp_path, {"inside": inside, "many": many}))
    assert found["inside"][1] is found["inside"] and found["inside"][0].tolist() == [1, 1]
    item = found["many"]
    for _ in range(60):
        item = item[0]
    assert item[0].tolist() == [3, 3]
    with pytest.raises(UnsupportedLeafError, match="no tree"):
        load(tmp_path / "x.pt", "inside")


def test_zip_bombs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a/data.pkl", bytes(1 << 24))
    with pytest.raises(CorruptFileError, match="compressed"):
        load(tmp_path / "x.pt")


# --- exports: what torch.save of the state would have given ---


def torch_load(path: Path, **options: Any) -> Any:
    return torch.load(path, weights_only=True, **options)


def test_what_people_save(tmp_path: Path) -> None:
    out, root = tmp_path / "x.pt", saved(tmp_path / "ckpt", training())
    done = export(root, out, TorchWriter())
    expected = deeppart.load(root)
    torch.save(expected, tmp_path / "theirs.pt")
    for found in (torch_load(out), torch_load(out, mmap=True), load(out), torch_load(tmp_path / "theirs.pt")):
        assert difference(expected, found) is None
        addresses = {found[name].untyped_storage().data_ptr() for name in ("weight", "tied", "turned", "rows")}
        assert len(addresses) == 1 and found["turned"].stride() == (1, 5)
        assert found["model"]._metadata == expected["model"]._metadata
    assert torch_load(out, mmap=True)["large"].data_ptr() % 64 == 0
    assert done.form == "torch" and done.nbytes > 4 * 600_000 and done.remarks == ()
    assert done.file_bytes < 1.02 * (tmp_path / "theirs.pt").stat().st_size
    model = torch.nn.Sequential(torch.nn.Linear(300, 4), torch.nn.BatchNorm1d(4))
    export(root, out, TorchWriter(), inner="model", overwrite=True)
    model.load_state_dict(torch_load(out))


def test_every_bit_of_every_dtype(tmp_path: Path) -> None:
    state = {name: {"x": bits(name), "p": bits(name)[3], "e": bits(name)[:0].view(0, 2)} for name in TORCH_DTYPES}
    export(saved(tmp_path / "ckpt", state), tmp_path / "x.pt", TorchWriter())
    for found in (torch_load(tmp_path / "x.pt"), load(tmp_path / "x.pt")):
        assert difference(state, found) is None


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_made_of_others(tmp_path: Path, kind: str) -> None:
    state = {"x": KINDS[kind](1), "plain": torch.ones(3)}
    root = saved(tmp_path / "ckpt", state)
    done = export(root, tmp_path / "x.pt", TorchWriter())
    assert difference(deeppart.load(root), torch_load(tmp_path / "x.pt")) is None
    if kind != "csr, unsorted":  # which torch's own check of invariants refuses
        assert difference(deeppart.load(root)["plain"], load(tmp_path / "x.pt", "plain")["plain"]) is None
    assert type(deeppart.load(root)["x"]) is dict or done.remarks


def test_what_torch_would_not_load_is_replaced_and_told(tmp_path: Path) -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")
    state = {"rng": np.arange(5, dtype=">u4"), "pair": pair(1, torch.ones(2)), "loss": np.float64(0.5), "s": two()}
    done = export(saved(tmp_path / "ckpt", state), tmp_path / "x.pt", TorchWriter())
    found = torch_load(tmp_path / "x.pt")
    assert found["rng"].dtype is torch.uint32 and found["rng"].tolist() == [0, 1, 2, 3, 4]
    assert type(found["pair"]) is tuple and found["loss"] == 0.5 and type(found["loss"]) is float
    assert len(done.remarks) == 3 and all(name in "".join(done.remarks) for name in ("rng", "pair", "loss"))


class Schedule(enum.Enum):
    COSINE = "cosine"


@dataclass
class Settings:
    out: Path = Path("runs/1")
    schedule: Schedule = Schedule.COSINE
    weights: dict[str, Any] = field(default_factory=lambda: {"w": torch.ones(2)})


class Meter:
    total = 3


def test_objects_and_values_of_scripts_are_plain_data(tmp_path: Path) -> None:
    """Read without any class."""
    deeppart.register(Meter, lambda meter: {"total": meter.total}, lambda data: Meter(), name="exported meter")
    state = {
        "settings": Settings(),
        "arguments": argparse.Namespace(rate=0.1, out=Path("x")),
        "space": SimpleNamespace(a=1),
        "losses": deque([1.0, 2.0], maxlen=4),
        "counts": defaultdict(list, {"a": [1]}),
        "seen": {1, 2},
        "frozen": frozenset({Schedule.COSINE}),
        "raw": bytearray(b"ab"),
        "stream": io.BytesIO(b"log"),
        "order": range(3),
        "meter": Meter(),
        "bytes": [b"x"],
    }
    done = export(saved(tmp_path / "ckpt", state), tmp_path / "x.pt", TorchWriter())
    found = torch_load(tmp_path / "x.pt")
    assert found["settings"].pop("weights")["w"].tolist() == [1, 1]
    assert found == {
        "settings": {"out": "runs/1", "schedule": "cosine"},
        "arguments": {"rate": 0.1, "out": "x"},
        "space": {"a": 1},
        "losses": [1.0, 2.0],
        "counts": {"a": [1]},
        "seen": {1, 2},
        "frozen": {"cosine"},
        "raw": bytearray(b"ab"),
        "stream": b"log",
        "order": "range(0, 3)",
        "meter": {"total": 3},
        "bytes": [b"x"],
    }
    assert [type(found[name]) for name in ("losses", "counts", "frozen")] == [list, dict, set]
    objects, members, texts = done.remarks
    assert "settings" in objects and "settings/schedule" in members and "settings/out" in texts


NO_LIKE: list[Any] = [
    *(np.zeros(2, dtype=kind) for kind in ("g", "S3", "<U1", "<M8[s]")),
    *(np.datetime64("2026-01-01"), "\ud800", {"\udc00": 1}, {np.int8(1): 1}, 1 << 2039, {(b"",): 1}, b""),
    *({Path("x"): 1}, {Schedule.COSINE: 1}, {frozenset({1})}),
]


def test_what_has_no_like_in_torch_is_named(tmp_path: Path) -> None:
    root = saved(tmp_path / "ckpt", {f"of {n}": {"deep": [{"bad": item}]} for n, item in enumerate(NO_LIKE)})
    for n in range(len(NO_LIKE)):
        with pytest.raises(StateError, match=f"of {n}/deep/0/bad"):
            export(root, tmp_path / "x.pt", TorchWriter(), keys=[f"of {n}/*"])
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_damage_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = saved(tmp_path / "ckpt", {"a": torch.randn(2_000_000), "small": [torch.randn(9) for _ in range(50)]})
    monkeypatch.setattr(reading_module, "BATCH_BYTES", 100)
    told: list[tuple[int, int]] = []
    export(root, tmp_path / "x.pt", TorchWriter(), progress=lambda *now: told.append(now))
    assert difference(deeppart.load(root), torch_load(tmp_path / "x.pt")) is None
    assert told == sorted(told) and told[-1] == (8_000_000 + 50 * 36,) * 2 and len(told) > 50
    (tmp_path / "x.pt").unlink()
    path = part_path(root, 1)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptFileError):
        export(root, tmp_path / "x.pt", TorchWriter())
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]
