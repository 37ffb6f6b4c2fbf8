"""Archives: what h5py reads from one, knowing nothing of deeppart, is what the checkpoint holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import deeppart
from deeppart.offline.export import archive as archive_module
from deeppart.offline.export import export
from deeppart.state.leaves import TORCH_DTYPES
from deeppart.state.runs import decode_leaf_value
from deeppart.state.values import decode_value
from deeppart.storage.steps import MANIFEST_NAME
from deeppart.testing.states import difference
from deeppart.testing.strategies import states
from tests.unit.cli_support import call, call_json, flip, forge, invoke, make_state, part_path, save, step_dir, steps_in
from tests.unit.test_incremental import bases
from tests.unit.test_incremental import config as incremental_config
from tests.unit.test_incremental import save as save_incremental


def written(directory: Path, state: Any, step: int = 1) -> Path:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=20.0)) as ck:
        ck.checkpoint(state, step).wait(timeout=200)
    return directory


def raw(item: h5py.Dataset) -> np.ndarray[Any, Any]:
    """The bytes as they are in the file."""
    octets = np.zeros(int(np.prod(item.shape)) * item.id.get_type().get_size(), dtype=np.uint8)
    if octets.size:
        item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, octets, mtype=item.id.get_type())
    return octets


def read_back(item: h5py.Group | h5py.Dataset) -> Any:
    """What docs/commands.md says of an archive, the other way round."""
    kind = item.attrs["type"]
    if isinstance(item, h5py.Group):
        named = {name: read_back(child) for name, child in item.items()}
        if kind in ("list", "tuple"):
            return [named[str(index)] for index in range(len(named))]
        return {exact(item[name], name): child for name, child in named.items()}
    library, _, dtype = kind.partition(".")
    if library == "torch":
        tensor = torch.zeros(raw(item).size, dtype=torch.uint8)  # from_numpy gives an empty one a stride of 0
        return tensor.copy_(torch.from_numpy(raw(item))).view(TORCH_DTYPES[dtype]).view(item.shape)
    if library == "numpy" and not dtype.isalnum():
        return raw(item).view(dtype).reshape(item.shape)
    if "items" in item.attrs:
        return item[()].tolist()
    if item.attrs.get("encoding") == "json":
        return plain(decode_leaf_value(json.loads(item.asstr()[()]), ""))
    value = item[()]
    python: dict[str, Callable[[Any], Any]] = {"NoneType": lambda _: None, "bytes": lambda data: data.tobytes()}
    python["str"] = lambda text: text.decode()
    python |= {"int": int, "float": float, "bool": bool, "complex": complex}
    return python[kind](value) if kind in python else value


def exact(child: h5py.HLObject, name: str) -> Any:
    return decode_value(json.loads(child.attrs["key"]), "") if "key" in child.attrs else name


def plain(state: Any) -> Any:
    """Containers as :func:`read_back` tells them."""
    if hasattr(state, "_fields"):
        return {name: plain(item) for name, item in zip(state._fields, state, strict=True)}
    if isinstance(state, dict):
        return {key: plain(item) for key, item in state.items()}
    return (
        [plain(item) for item in state] if isinstance(state, (list, tuple)) and type(state) is not torch.Size else state
    )


def test_an_archive_holds_the_state(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 10, 20)
    out = tmp_path / "out.h5"
    printed = call("export", tmp_path / "ckpt", out)
    assert "step 20: 8 leaves and 7 values" in printed
    with h5py.File(out) as file:
        assert difference(plain(make_state(20.0)), read_back(file["state"]), ordered=False) is None
        assert dict(file.attrs) | {"library": "", "created": ""} == {
            "deeppart_archive": 1,
            "step": 20,
            "world_size": 1,
            "rank": 0,
            "library": "",
            "created": "",
        }
        np.testing.assert_array_equal(file["state/model/bias"][:], make_state(20.0)["model"]["bias"].numpy())
        assert file["state/step"][()] == 12
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "out.h5"]


def test_tied_leaves_are_one_data_set(tmp_path: Path) -> None:
    base = torch.arange(20.0)
    written(tmp_path / "ckpt", {"a": base, "b": base, "part": base[5:8], "turned": base.view(4, 5).T, "c": base + 1})
    out = export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert (out.leaves, out.values, out.nbytes) == (5, 0, 4 * (20 + 20 + 3 + 20 + 20))
    with h5py.File(tmp_path / "out.h5") as file:
        state = file["state"]
        assert state["a"] == state["b"] and state["a"] != state["c"]
        assert state["part"].attrs["shares_memory_with"] == "/state/a"
        np.testing.assert_array_equal(state["part"][:], [5, 6, 7])
        np.testing.assert_array_equal(state["turned"][:], base.view(4, 5).T.numpy())
    assert out.file_bytes < 4 * (20 + 3 + 20 + 20) + 20_000


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_bit_of_every_dtype(tmp_path: Path, name: str) -> None:
    dtype = TORCH_DTYPES[name]
    octets = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8).repeat(4)
    data = (octets & 1 if dtype is torch.bool else octets).view(dtype)
    state = {"x": data, "scalar": data[3], "empty": data[:0].view(0, 3)}
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert difference(state, read_back(file["state"]), ordered=False) is None
        if name == "bfloat16":  # to every reader of HDF5, a number
            numbers = file["state/x"][:].astype(np.float32)
            np.testing.assert_array_equal(numbers, data.float().numpy())
            assert file["state/scalar"][()] == float(data[3])


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(state=states())
def test_any_state_can_be_exported(checkpointer: deeppart.Checkpointer, state: Any) -> None:
    root = Path(checkpointer.config.persistent_dir)
    step = max(steps_in(root), default=0) + 1
    checkpointer.checkpoint(state, step).wait(timeout=200)
    export(root, root / "out.h5", step=step, overwrite=True)
    with h5py.File(root / "out.h5") as file:
        assert difference(plain(deeppart.load(root, step)), read_back(file["state"]), ordered=False) is None


@pytest.fixture(scope="module")
def checkpointer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[deeppart.Checkpointer]:
    directory = tmp_path_factory.mktemp("export")
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=30.0)) as ck:
        yield ck


def test_keys_that_look_alike(tmp_path: Path) -> None:
    Pair = namedtuple("Pair", "list dict")
    state = {
        "m": {0: 1, "0": 2, True: 3, "": 4, ".": 5, "..": 6, "a/b": 7, "a~1b": 8, "a\0": 9, "größe": 10, None: 11},
        "o": OrderedDict([(2, torch.ones(2)), ("2", torch.zeros(3))]),
        "c": Counter("abba"),
        "p": Pair(1, torch.ones(1)),
        "t": tuple(range(12)),
    }
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert difference(plain(state), read_back(file["state"]), ordered=False) is None
        assert {"0", "0~str", "~empty", "~dot", "..", "a~1b", "a~01b", "größe"} <= set(file["state/m"])
        assert file["state/p"].attrs["name"] == "Pair"


def test_a_few_bytes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ckpt", 1)
    monkeypatch.setattr(archive_module, "_BATCH_BYTES", 300)
    told: list[tuple[int, int]] = []
    out = export(tmp_path / "ckpt", tmp_path / "out.h5", progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 5 and told == sorted(told) and told[-1] == (out.nbytes, out.nbytes)
    with h5py.File(tmp_path / "out.h5") as file:
        assert difference(plain(make_state(1.0)), read_back(file["state"]), ordered=False) is None


def test_unchanged_chunks_come_from_the_older_files(tmp_path: Path) -> None:
    with deeppart.Checkpointer(incremental_config(tmp_path)) as ck:
        save_incremental(ck, 1, 2, 3)
    base = bases(tmp_path / "ckpt")[0]
    exported = call_json("export", tmp_path / "ckpt", tmp_path / "out.h5")
    assert exported["step"] == 3 and exported["bytes"] > 10 * part_path(tmp_path / "ckpt", 3).stat().st_size
    with h5py.File(tmp_path / "out.h5") as file:
        assert difference(deeppart.load(tmp_path / "ckpt"), read_back(file["state"]), ordered=False) is None
    flip(base, base.stat().st_size // 2)
    answer = call_json("export", tmp_path / "ckpt", tmp_path / "damaged.h5", code=1)
    assert answer["error"]["kind"] == "CorruptFileError"
    assert not list(tmp_path.glob("*damaged.h5*")) and not list(tmp_path.glob(".*damaged*"))


def test_keys_ranks_and_steps_are_chosen(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    out = tmp_path / "out.h5"
    assert call_json("export", tmp_path, out, "--rank", 2, "--step", 5)["per_rank"] == 2
    with h5py.File(out) as file:
        assert set(file["state"]) == {"a", "b", "rng", "position"} and file.attrs["rank"] == 2
        assert file["state/position"][()] == 1002 and (file["state/rng"][:] == 2).all()
        assert file["state/rng"].attrs["per_rank"] and "per_rank" not in file["state/a"].attrs
        np.testing.assert_array_equal(file["state/a"][:], np.arange(900, dtype=np.float32))
    assert "2 of them are rank 0's own" in call("export", tmp_path, out, "--overwrite")
    call("export", tmp_path, out, "--overwrite", "--keys", "a", "--keys", "pos*")
    with h5py.File(out) as file:
        assert set(file["state"]) == {"a", "position"}
    call("export", tmp_path, tmp_path / "n.h5", "--keys", "nothing*", code=1)
    call("export", tmp_path, tmp_path / "n.h5", "--rank", 3, code=1)
    call("export", tmp_path, tmp_path / "n.h5", "--step", 4, code=1)
    assert not (tmp_path / "n.h5").exists()


def test_a_file_of_that_name_is_not_touched(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    out = tmp_path / "out.h5"
    out.write_text("precious")
    answer = call_json("export", tmp_path / "ckpt", out, code=2)
    assert answer["error"]["kind"] == "StorageError" and "--overwrite" in answer["error"]["todo"]
    assert out.read_text() == "precious"
    step_dir(tmp_path / "ckpt", 1).joinpath(MANIFEST_NAME).unlink()
    assert invoke("export", tmp_path / "ckpt", out, "--overwrite").exit_code == 1
    assert out.read_text() == "precious"
    call("export", tmp_path / "nowhere", tmp_path / "other.h5", code=1)
    save(tmp_path / "ckpt", 2)
    call("export", tmp_path / "ckpt", tmp_path / "no" / "such.h5", code=2)
    call("export", tmp_path / "ckpt", out, "--overwrite")
    with h5py.File(out) as file:
        assert file.attrs["step"] == 2


def test_storage_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full file system: the write fails the same way."""
    save(tmp_path / "ckpt", 1)
    code = f"""
        import resource
        from deeppart.errors import StorageError
        from deeppart.offline.export import export
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        try:
            export({str(tmp_path / "ckpt")!r}, {str(tmp_path / "out.h5")!r})
        except StorageError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "cannot write the archive" in done.stdout, done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["ckpt"]


def test_the_next_step_is_exported_if_the_newest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ckpt", 1)
    open_checkpoint = archive_module.OpenCheckpoint  # type: ignore[attr-defined]

    def late(*arguments: Any, **settings: Any) -> Any:
        if 2 not in steps_in(tmp_path / "ckpt"):
            save(tmp_path / "ckpt", 2)
            directory = step_dir(tmp_path / "ckpt", 1)
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()
        return open_checkpoint(*arguments, **settings)

    monkeypatch.setattr(archive_module, "OpenCheckpoint", late)
    assert export(tmp_path / "ckpt", tmp_path / "out.h5").step == 2
