"""Files of torch.save: what torch.load(weights_only=True) gives, and what is damaged or would execute something."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, DeeppartError, StorageError, StructureMismatchError, UnsupportedLeafError
from deeppart.interop.torch_file import load, refusal, told_by_torch
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.testing.states import difference
from tests.tensor_kinds import coo, csr, quantized
from tests.unit.interop.making import bits, training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Anything:
    """Of no kind that ``weights_only`` knows."""


def written(tmp_path: Path, state: Any) -> Path:
    torch.save(state, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def test_what_people_save(tmp_path: Path) -> None:
    path = written(tmp_path, training() | {"set": {1, 2}, "size": torch.Size([2]), "raw": b"\xff", "dtype": torch.int8})
    found, theirs = load(path), torch.load(path, weights_only=True)
    assert found.pop("set") == theirs.pop("set") == {1, 2}
    assert difference(theirs, found) is None
    assert found["model"]._metadata == theirs["model"]._metadata
    addresses = {found[name].untyped_storage().data_ptr() for name in ("weight", "tied", "turned", "rows")}
    assert len(addresses) == 1 and found["turned"].stride() == (1, 5)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_bit_of_every_dtype(tmp_path: Path, name: str) -> None:
    state = {"x": bits(name), "p": bits(name)[3]}
    assert difference(state, load(written(tmp_path, state))) is None


def test_parameters_and_modules_of_tensors(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.arange(3.0))
    found = load(written(tmp_path, {"p": parameter, "x": parameter.detach()}))
    assert type(found["p"]) is torch.nn.Parameter and found["p"].requires_grad and found["p"].tolist() == [0, 1, 2]


def test_keys(tmp_path: Path) -> None:
    path = written(tmp_path, training())
    assert difference(training()["model"], load(path, "model")["model"]) is None
    found = load(path, ["step", "optimizer/state/0/exp_avg"])
    assert found.keys() == {"optimizer", "step"} and found["optimizer"]["state"][0].keys() == {"exp_avg"}
    with pytest.raises(StructureMismatchError, match="matches the keys"):
        load(path, "modle")


@pytest.mark.parametrize("item", [coo(), csr(), quantized()], ids=["coo", "csr", "quantized"])
def test_tensors_that_are_made_of_others(tmp_path: Path, item: torch.Tensor) -> None:
    state = {"x": item, "plain": torch.ones(3)}
    assert difference(state, load(written(tmp_path, state))) is None


def test_indices_that_lead_nowhere(tmp_path: Path) -> None:
    """torch checks them only if asked to; its kernels would read other memory."""
    bad = torch.sparse_coo_tensor(torch.tensor([[7]]), torch.ones(1), (3,), check_invariants=False)
    with pytest.raises(CorruptFileError):
        load(written(tmp_path, {"x": bad}))


@pytest.mark.skipif(torch.__version__ < "2.6", reason="is refused by name there")
def test_the_format_before_1_6(tmp_path: Path) -> None:
    torch.save(training(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert difference(torch.load(tmp_path / "x.pt", weights_only=True), load(tmp_path / "x.pt")) is None


# --- what a file may not do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [True, False])
def test_what_only_unpickling_could_make_is_named(tmp_path: Path, new: bool) -> None:
    torch.save({"w": torch.ones(2), "x": Anything()}, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(UnsupportedLeafError, match="only unpickling could make") as caught:
        load(tmp_path / "x.pt")
    assert "Anything" in (caught.value.found or "")
    with pytest.raises(UnsupportedLeafError) as caught:
        load(written(tmp_path, {"x": np.ones(2)}))
    assert "_reconstruct" in (caught.value.found or "")


def test_what_torch_says_has_no_bold_type() -> None:
    """Its message is made for terminals, and ours may go to a log."""
    bold = pickle.UnpicklingError("Weights only load failed. \x1b[1mDo so only if you trust it\x1b[0m.\nmore")
    assert told_by_torch(bold) == "'Weights only load failed. Do so only if you trust it.'"
    assert refusal(bold, "here").found == told_by_torch(bold)
    assert told_by_torch(ValueError("a\nb"), lines=None) == "'a\\nb'"


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

    import io

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(Rebuilt())
    return buffer.getvalue()


def test_storages_of_other_lengths_than_their_records(tmp_path: Path) -> None:
    assert load(with_pickle(tmp_path / "x.pt", pickled(2), _0=bytes(8))).tolist() == [0, 0]
    for elements, content in ((1 << 40, bytes(8)), (2, bytes(4)), (-1, b""), (0, bytes(8))):
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
            load(path)
    path.unlink()
    with pytest.raises(StorageError):
        load(path)


def test_tensors_in_all_places_are_read(tmp_path: Path) -> None:
    """In sets, keys and attributes too, where nobody would look for them."""
    apart = OrderedDict(x=torch.ones(2))
    apart.extra = torch.full((3,), 7.0)  # type: ignore[attr-defined]
    state = {"set": {torch.full((3,), 5.0)}, "keys": {(torch.full((3,), 6.0), 1): 2}, "apart": apart}
    found = load(written(tmp_path, state))
    ((key, _),) = found["keys"]
    tensors = [*found["set"], key, found["apart"].extra]
    assert [tensor.tolist() for tensor in tensors] == [[5.0] * 3, [6.0] * 3, [7.0] * 3]


def test_conjugated_and_negated_tensors(tmp_path: Path) -> None:
    state = {"c": torch.randn(5, dtype=torch.complex64).conj(), "n": torch.randn(5, dtype=torch.complex64).conj().imag}
    assert difference(state, load(written(tmp_path, state))) is None


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


def test_a_tensor_of_which_the_file_has_no_bytes(tmp_path: Path) -> None:
    """It would hold what was in this process's memory."""
    path = with_pickle(tmp_path / "x.pt", b"\x80\x02ctorch\nTensor\nK\x04\x85R.")
    with pytest.raises(CorruptFileError, match="cannot be read") as caught:
        load(path)
    assert "no record" in (caught.value.found or "")


def test_damaged_bytes_that_torch_reads_itself(tmp_path: Path) -> None:
    path = written(tmp_path, {"x": coo(), "w": torch.arange(1000.0)})
    data = bytearray(path.read_bytes())
    data[data.index(torch.arange(500.0, 510.0).numpy().tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="is damaged"):
        load(path)
