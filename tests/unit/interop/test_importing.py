"""Imports: a committed step that holds what the foreign checkpoint holds, in memory that does not grow with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import deeppart
from deeppart.errors import (
    CorruptFileError,
    DirectoryInUseError,
    RestoreError,
    StateError,
    StepExistsError,
    StructureMismatchError,
)
from deeppart.extension.export import export
from deeppart.extension.export.hdf5 import Hdf5Writer
from deeppart.interop import load
from deeppart.interop.dcp.writing import DcpWriter
from deeppart.interop.importing import import_checkpoint
from deeppart.interop.safetensors import SafetensorsWriter
from deeppart.interop.torch_file import TorchWriter
from tests.states import difference
from tests.tensor_kinds import coo, quantized
from tests.unit.cli_support import call_json
from tests.unit.interop.dcp.test_loading import COLUMNS, in_pieces
from tests.unit.interop.making import saved, training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def from_torch(path: Path) -> Path:
    torch.save(training() | {"sizes": list(range(20))}, path)
    return path


def from_dcp(path: Path) -> Path:
    dcp.save(training(), checkpoint_id=path)
    return path


def exported(writer: Any) -> Any:
    def make(path: Path) -> Path:
        export(saved(path.with_name("theirs"), training()), path, writer)
        return path

    return make


MAKERS = {
    "torch": from_torch,
    "dcp": from_dcp,
    "our torch": exported(TorchWriter()),
    "our dcp": exported(DcpWriter(1000)),
    "our safetensors": exported(SafetensorsWriter()),
    "our directory": exported(SafetensorsWriter(1000)),
    "our hdf5": exported(Hdf5Writer()),
    "sparse": lambda path: torch.save({"x": coo(), "q": quantized(), "y": torch.ones(2)}, path) or path,
    "columns": lambda path: in_pieces(path, torch.arange(35.0).view(7, 5), COLUMNS),
    "nothing": lambda path: torch.save({}, path) or path,
    "list": lambda path: torch.save([torch.ones(2), 5], path) or path,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_holds_what_was_there(tmp_path: Path, name: str) -> None:
    source = MAKERS[name](tmp_path / "source")
    told: list[tuple[int, int]] = []
    done = import_checkpoint(source, tmp_path / "ckpt", progress=lambda *now: told.append(now))
    expected = load(source)
    found = deeppart.load(tmp_path / "ckpt")
    assert done.step == 0 and difference(expected, found) is None
    assert told == sorted(told) and (not told or told[-1] == (done.nbytes, done.nbytes))
    assert call_json("verify", tmp_path / "ckpt")["steps"][0]["state"] == "sound"
    if name in ("torch", "our torch"):
        assert found["turned"].untyped_storage().data_ptr() == found["weight"].untyped_storage().data_ptr()
        blank = {key: torch.zeros_like(x) for key, x in expected["model"].items()}
        with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)) as ck:
            state = expected | {"model": blank}
            assert ck.restore(state) == 0
            ck.checkpoint(state, 1).wait(timeout=200)
        assert torch.equal(blank["0.weight"], expected["model"]["0.weight"])


def test_keys_steps_and_kinds(tmp_path: Path) -> None:
    source = from_torch(tmp_path / "x.pt")
    import_checkpoint(source, tmp_path / "ckpt", step=7, keys=["model", "step"])
    assert deeppart.load(tmp_path / "ckpt").keys() == {"model", "step"}
    with pytest.raises(StateError, match="needs a number"):
        import_checkpoint(source, tmp_path / "ckpt")
    with pytest.raises(StepExistsError):
        import_checkpoint(source, tmp_path / "ckpt", step=7)
    import_checkpoint(source, tmp_path / "ckpt", step=8, form="torch")
    with pytest.raises(StructureMismatchError):
        import_checkpoint(source, tmp_path / "ckpt", step=9, keys=["no"])
    with pytest.raises(CorruptFileError):
        import_checkpoint(source, tmp_path / "ckpt", step=9, form="safetensors")
    with pytest.raises(RestoreError):
        import_checkpoint(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert [step["step"] for step in call_json("ls", tmp_path / "ckpt")["steps"]] == [7, 8]
    torch.save(torch.ones(2), source)
    with pytest.raises(StateError, match="is no state"):
        import_checkpoint(source, tmp_path / "other")


def test_a_job_that_is_running_there(tmp_path: Path) -> None:
    source = from_torch(tmp_path / "x.pt")
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"), timeout=20.0)):
        with pytest.raises(DirectoryInUseError):
            import_checkpoint(source, tmp_path / "ckpt")


def test_damage_in_the_middle_leaves_no_step(tmp_path: Path) -> None:
    source = from_torch(tmp_path / "x.pt")
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    with pytest.raises(CorruptFileError, match="is damaged"):
        import_checkpoint(source, tmp_path / "ckpt")
    assert not list((tmp_path / "ckpt").glob("step-*"))
    import_checkpoint(from_torch(source), tmp_path / "ckpt")
    assert deeppart.load(tmp_path / "ckpt")["name"] == "größe"


def test_signed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    import_checkpoint(from_torch(tmp_path / "x.pt"), tmp_path / "ckpt", sign_key_file=key)
    assert deeppart.load(tmp_path / "ckpt", sign_key_file=key)["name"] == "größe"
    assert call_json("verify", tmp_path / "ckpt", "--sign-key-file", key)["steps"][0]["state"] == "sound"


@pytest.mark.now_and_then(4)
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """200 MB in, in 64 MiB of memory beside what is there without, and out again leaf by leaf: nothing is mapped.

    The largest leaf has 80 MB.
    """
    code = """
        import json, sys
        import torch
        from pathlib import Path
        from deeppart.interop.formats import writer_for
        from deeppart.interop.importing import import_checkpoint
        from deeppart.extension.export import export
        from deeppart.offline import reading
        import torch.distributed.checkpoint

        def used():
            return sum(int(line.split()[1]) for line in open("/proc/self/status") if line[:7] in ("RssAnon", "RssShme"))

        def measured(call):
            most = [0]
            def told(done, total):
                most[0] = max(most[0], used())
            before = used()
            call(told)
            return most[0] - before

        reading.BATCH_BYTES = 32 << 20
        here = Path(sys.argv[1])
        names = {"safetensors": "x.safetensors", "torch": "x.pt", "dcp": "x", "hdf5": "x.h5"}
        import_checkpoint(here / "small.pt", here / "warm")
        found = {}
        for form, name in names.items():
            writer = writer_for(form, here / name)
            export(here / "warm", here / f"warm.{name}", writer_for(form, here / f"warm.{name}"))
            found[f"export {form}"] = measured(lambda told: export(here / "ckpt", here / name, writer, progress=told))
            of = here / f"of {form}"
            found[f"import {form}"] = measured(lambda told: import_checkpoint(here / name, of, progress=told))
        print(json.dumps(found))
    """
    with deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt"), compression="none", timeout=20.0) as ck:
        more = {name: torch.ones(2000, 5000) for name in "bcd"}
        ck.checkpoint({"a": torch.ones(20_000_000), **more}, 1).wait(timeout=200)
    torch.save({"a": torch.ones(2_000_000)}, tmp_path / "small.pt")
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 8
    for name in ("export safetensors", "export torch"):  # which hold a leaf, without copies of it
        assert found.pop(name) < 112 << 10, name
    for name in ("export hdf5", "import dcp"):  # which hold a leaf, and a piece of one
        assert found.pop(name) < 160 << 10, name
    assert not {name: kilobytes for name, kilobytes in found.items() if kilobytes >= 64 << 10}
    for name in ("of dcp", "of hdf5"):
        assert difference({"a": torch.ones(20_000_000)}, deeppart.load(tmp_path / name, keys="a")) is None


def test_what_would_be_far_more_than_the_file_is_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1).expand(1 << 40)}, tmp_path / "x.pt")
    with pytest.raises(StateError, match="repeats its few bytes"):
        import_checkpoint(tmp_path / "x.pt", tmp_path / "ckpt")
    many: list[Any] = [5]
    for _ in range(60):
        many = [many, many]
    torch.save({"x": many}, tmp_path / "y.pt")
    with pytest.raises(StateError, match="no tree"):
        import_checkpoint(tmp_path / "y.pt", tmp_path / "ckpt")
    assert not list((tmp_path / "ckpt").glob("step-*"))
