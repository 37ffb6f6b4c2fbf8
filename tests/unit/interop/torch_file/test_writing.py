"""What is exported for torch: torch.load(weights_only=True) gives what torch.save of the state would have given."""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import zipfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import deeppart
from deeppart.errors import CorruptFileError, StateError, StorageError
from deeppart.interop.dcp.writing import DcpWriter
from deeppart.interop.torch_file import TorchWriter, load
from deeppart.offline.export import export
from deeppart.offline.export import reading as reading_module
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.testing.states import difference
from deeppart.testing.strategies import states
from tests.sampling import examples
from tests.tensor_kinds import KINDS, two
from tests.unit.cli_support import flip, part_path, steps_in
from tests.unit.interop.making import bits, saved, training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


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


def test_objects_of_scripts_are_read_without_any_class(tmp_path: Path) -> None:
    state = {
        "arguments": argparse.Namespace(rate=0.5, out=Path("x")),
        "losses": deque([1.0], maxlen=3),
        "seen": {1, 2},
        "frozen": frozenset({3}),
        "raw": bytearray(b"ab"),
        "counts": defaultdict(int, a=1),
    }
    export(saved(tmp_path / "ckpt", state), tmp_path / "x.pt", TorchWriter())
    assert torch_load(tmp_path / "x.pt") == {
        "arguments": {"rate": 0.5, "out": "x"},
        "losses": [1.0],
        "seen": {1, 2},
        "frozen": {3},
        "raw": bytearray(b"ab"),
        "counts": {"a": 1},
    }


def test_other_readers_of_zip_find_every_checksum_right(tmp_path: Path) -> None:
    export(saved(tmp_path / "ckpt", training()), tmp_path / "x.pt", TorchWriter())
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None and "archive/data/0" in archive.namelist()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_bit_of_every_dtype(tmp_path: Path, name: str) -> None:
    state = {"x": bits(name), "p": bits(name)[3], "e": bits(name)[:0].view(0, 2)}
    export(saved(tmp_path / "ckpt", state), tmp_path / "x.pt", TorchWriter())
    assert difference(state, torch_load(tmp_path / "x.pt")) is None


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


@pytest.mark.parametrize(
    "item",
    [np.array(["a"]), np.datetime64("2026-01-01"), "\ud800", {"\udc00": 1}, {np.int8(1): 1}, 1 << 2039, {(b"",): 1}],
)
def test_what_has_no_like_in_torch_is_named(tmp_path: Path, item: Any) -> None:
    root = saved(tmp_path / "ckpt", {"deep": [{"bad": item}]})
    with pytest.raises(StateError, match="deep/0/bad"):
        export(root, tmp_path / "x.pt", TorchWriter())
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


@pytest.fixture(scope="module")
def checkpointer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[deeppart.Checkpointer]:
    directory = tmp_path_factory.mktemp("export")
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=30.0)) as ck:
        yield ck


def plain(item: Any) -> Any:
    """As torch has it: tensors for arrays, tuples for namedtuples, Python's numbers for numpy's."""
    if isinstance(item, np.ndarray):
        return torch.from_numpy(item.astype(item.dtype.newbyteorder("<"), order="C"))
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, dict):
        for key in list(item):
            item[key] = plain(item[key])
        return item
    if isinstance(item, (list, tuple)) and type(item) is not torch.Size:
        return [*map(plain, item)] if type(item) is list else tuple(map(plain, item))
    return item


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(state=states())
def test_any_state_is_exact_or_refused_by_name(checkpointer: deeppart.Checkpointer, state: Any) -> None:
    root = Path(checkpointer.config.persistent_dir)
    step = max(steps_in(root), default=0) + 1
    checkpointer.checkpoint(state, step).wait(timeout=200)
    try:
        export(root, root / "out.pt", TorchWriter(), step=step, overwrite=True)
    except StateError as error:
        assert error.where
        return
    assert difference(plain(deeppart.load(root, step)), torch_load(root / "out.pt")) is None


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


@pytest.mark.parametrize("writer", [TorchWriter(), DcpWriter()], ids=["torch", "dcp"])
def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any) -> None:
    """By an error that names the archive, and nothing is printed beside it."""
    root, printed = saved(tmp_path / "ckpt", {"w": torch.ones(3_000_000)}), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageError) as caught:
            export(root, tmp_path / "out", writer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(tmp_path / "out") in (caught.value.where or "")
    del caught
    gc.collect()
    assert printed == [] and [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_what_a_counter_counts_in(tmp_path: Path) -> None:
    done = export(saved(tmp_path / "ckpt", {"x": Counter({"a": np.float16(2)})}), tmp_path / "x.pt", TorchWriter())
    assert torch.load(tmp_path / "x.pt", weights_only=True) == {"x": Counter({"a": 2.0})}
    assert done.remarks == ("numpy scalars are Python's there: x/a",)
