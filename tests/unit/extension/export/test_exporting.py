"""An export as a whole: what is refused, how leaves are read, what is made beside its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import deeppart
from deeppart import access
from deeppart.errors import RestoreError, StateError, StorageError, StructureMismatchError
from deeppart.extension.export import export
from deeppart.extension.export.content import Content
from deeppart.extension.export.output import OutputFile, OutputFolder
from deeppart.interop import load as load_foreign
from deeppart.interop.dcp.writing import DcpWriter
from deeppart.interop.torch_file import TorchWriter
from deeppart.offline.find import with_checkpoint
from deeppart.offline.reading import OpenCheckpoint
from tests.sampling import examples
from tests.states import difference
from tests.strategies import states
from tests.unit.cli_support import save, steps_in
from tests.unit.interop.making import saved

# --- An export as a whole ---------------------------------------------------------------------------------------------


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    with pytest.raises(RestoreError):
        export(tmp_path / "ckpt", tmp_path / "x", rank=1)
    with pytest.raises(StructureMismatchError, match="no such container"):
        export(tmp_path / "ckpt", tmp_path / "x", inner="model/none")
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]
    done = export(tmp_path / "ckpt", tmp_path / "x", inner="model")
    assert (done.form, done.files, done.leaves) == ("hdf5", 1, 3)


def test_what_stands_there_is_called_what_it_is(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(StorageError, match="there is a directory of that name") as caught:
            export(tmp_path / "ckpt", tmp_path / "folder", overwrite=overwrite)
        assert "does not replace a directory" in str(caught.value) and str(tmp_path / "folder") in str(caught.value)
        with pytest.raises(StorageError, match="there is a file of that name") as caught:
            export(tmp_path / "ckpt", tmp_path / "file", DcpWriter(), overwrite=overwrite)
        assert "does not replace a file" in str(caught.value)
    with pytest.raises(StorageError, match="there is a directory of that name") as caught:
        export(tmp_path / "ckpt", tmp_path / "folder", DcpWriter())
    assert "--overwrite" in str(caught.value)
    with pytest.raises(StorageError, match="there is a file of that name"):
        export(tmp_path / "ckpt", tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "file", "folder"]
    assert (tmp_path / "file").read_text() == "precious"
    export(tmp_path / "ckpt", tmp_path / "folder", DcpWriter(), overwrite=True)
    assert (tmp_path / "folder" / ".metadata").exists()


def test_a_step_is_not_written_over_by_its_own_archive(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    (step,) = (tmp_path / "ckpt").glob("step-0*")
    before = {path.name: path.read_bytes() for path in step.iterdir()}
    (tmp_path / "link").symlink_to(step)
    for out in (step / "manifest", step / "new", tmp_path / "link" / "manifest"):
        with pytest.raises(StorageError, match="into a step"):
            export(tmp_path / "ckpt", out, overwrite=True)
    assert {path.name: path.read_bytes() for path in step.iterdir()} == before
    assert export(tmp_path / "ckpt", tmp_path / "ckpt" / "archive.h5").step == 1


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


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(state=states())
def test_any_state_is_exact_or_refused_by_name_in_each_format(checkpointer: deeppart.Checkpointer, state: Any) -> None:
    root = Path(checkpointer.config.persistent_dir)
    step = max(steps_in(root), default=0) + 1
    checkpointer.checkpoint(state, step).wait(timeout=200)
    loaded = deeppart.load(root, step)
    export(root, root / "out.h5", step=step, overwrite=True)
    assert difference(loaded, load_foreign(root / "out.h5")) is None
    try:
        export(root, root / "out.pt", TorchWriter(), step=step, overwrite=True)
    except StateError as error:
        assert error.where
        return
    assert difference(plain(loaded), torch.load(root / "out.pt", weights_only=True)) is None


# --- What of a checkpoint is exported, and how its leaves are read ----------------------------------------------------


def looked_at(root: Path, look: Callable[[Content], Any], **options: Any) -> Any:
    def use(chosen: Any) -> Any:
        with ExitStack() as files:
            checkpoint = OpenCheckpoint(files, chosen.step)
            return look(Content(checkpoint, **options))

    return with_checkpoint(root, None, use, None)


def test_a_few_bytes_that_would_be_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.ones(10)
    root = saved(tmp_path / "ckpt", {"a": base, "wide": base[:1].expand(5000)})
    looked_at(root, Content.refuse_repeats)
    monkeypatch.setattr("deeppart.offline.reading.BATCH_BYTES", 1000)
    with pytest.raises(StateError, match="repeats its few bytes"):
        looked_at(root, Content.refuse_repeats)


# --- What is made beside its place, and what is left of it ------------------------------------------------------------


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with access.open_folder(tmp_path) as folder:
        with OutputFile(folder, "x", tmp_path / "x") as file:
            with file.stream() as stream:
                for size in (3, 5000, 9 << 20, 0, 1):
                    assert stream.write(bytes([size % 251]) * size) == size
            assert not (tmp_path / "x").exists() and stream.nbytes == 3 + 5000 + (9 << 20) + 1
            assert file.finish() == (1, stream.nbytes)
    expected = b"".join(bytes([size % 251]) * size for size in (3, 5000, 9 << 20, 1))
    assert (tmp_path / "x").read_bytes() == expected and os.listdir(tmp_path) == ["x"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with access.open_folder(tmp_path) as folder:
        with pytest.raises(ZeroDivisionError):
            with OutputFile(folder, "x", tmp_path / "x") as file, file.stream() as stream:
                stream.write(bytes(10 << 20))
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            with OutputFolder(folder, "d", tmp_path / "d") as made:
                with made.file(".metadata") as file, file.stream() as stream:
                    stream.write(b"x")
                    file.finish()
                raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_directory_takes_the_place_of_one_that_was_made_so(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "model-00001-of-00002.safetensors").write_text("old")
    with access.open_folder(tmp_path) as folder:
        for name in (".metadata", "model.safetensors"):
            with OutputFolder(folder, "d", tmp_path / "d") as made:
                with made.file(name) as file:
                    with file.stream() as stream:
                        stream.write(b"new")
                    file.finish()
                assert made.finish() == (1, 3)
            assert os.listdir(tmp_path) == ["d"] and os.listdir(tmp_path / "d") == [name]
        (tmp_path / "d" / "notes.txt").write_text("mine")
        with pytest.raises(StorageError, match="more than an export makes") as caught:
            with OutputFolder(folder, "d", tmp_path / "d") as made:
                made.finish()
        assert caught.value.found == "notes.txt" and os.listdir(tmp_path) == ["d"]
