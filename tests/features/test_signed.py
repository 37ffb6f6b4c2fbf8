"""Signed checkpoints: with a key, nothing passes that its holder has not written, whatever digests are made right."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.config import Config
from deeppart.errors import CorruptFileError, RestoreError, SignatureError
from deeppart.extension.export import export
from deeppart.part import FileSource, PartReader, Signing
from deeppart.storage import PosixStore, committed_steps
from tests.copying import copy_as_original
from tests.fuzz.images import ManifestImage, PartImage
from tests.golden import forge
from tests.unit import cli_support

SECRET, OTHER = bytes(range(32)), b"another key, long enough to be one"
SIGNING = Signing([SECRET])
#: What a signature takes in the first line of a manifest.
SIGNATURE = " blake2b=" + 64 * "0"
#: Whole chunks, so that what changes in one leaf leaves the others unchanged.
ELEMENTS = 2 << 20


def key_file(directory: Path, secret: bytes = SECRET, name: str = "key", mode: int = 0o600) -> Path:
    path = directory / name
    path.write_bytes(secret)
    path.chmod(mode)
    return path


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        "frozen": torch.randn(ELEMENTS, generator=generator),
        "changing": torch.full((1000,), float(step)),
        "ids": torch.arange(5000),
        "step": step,
    }


def live() -> dict[str, Any]:
    return {name: torch.zeros_like(value) if name != "step" else 0 for name, value in state(0).items()}


def settings(root: Path, **more: Any) -> Config:
    return Config(persistent_dir=str(root / "ckpt"), **{"sign_key_file": str(root / "key"), **more})


def save(root: Path, *steps: int, **more: Any) -> None:
    """Checkpoints at these steps, signed unless told otherwise; what does not change is in bases."""
    if not (root / "key").exists():
        key_file(root)
    with deeppart.Checkpointer(settings(root, **{"keep": {"persistent": 0, "local": 0}, **more})) as checkpointer:
        for step in steps:
            pending = checkpointer.checkpoint(state(step), step=step)
            for level in pending.levels:
                pending.wait(level)


def restore(root: Path, **more: Any) -> tuple[int | None, tuple[str, ...]]:
    """(step, explanation); every byte has been compared."""
    restored = live()
    with warnings.catch_warnings(), deeppart.Checkpointer(settings(root, **more)) as checkpointer:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)  # that a newer step is in the directory
        step, explanation = checkpointer.restore(restored), checkpointer.explanation
    if step is not None:
        wanted = state(step)
        assert restored["step"] == step
        assert all(torch.equal(restored[name], wanted[name]) for name in ("frozen", "changing", "ids"))
    return step, explanation


def only(root: Path, step: int, pattern: str = "part-*") -> Path:
    (path,) = root.glob(f"ckpt/step-{step:012d}*/{pattern}")
    return path


Edit = Callable[[PartImage], object]


@pytest.mark.parametrize(("compression", "local"), [("none", True), ("tensor", False), ("zstd", True)])
def test_signed_saved_and_restored(compression: str, local: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {"compression": compression, "local_dir": str(tmp_path / "local") if local else None}
    save(tmp_path, 1, 2, 3, **more)
    assert restore(tmp_path, **more)[0] == 3
    assert restore(tmp_path, **{**more, "local_dir": None})[0] == 3  # from the persistent level
    assert restore(tmp_path, **more, sign_key_file=None)[0] == 3
    with FileSource(only(tmp_path, 3)) as source:
        reader = PartReader(source, where="here", signing=SIGNING)
        assert reader.bases and (reader.chunks["base"] > 0).any()
        assert compression == "none" or (reader.chunks["codec"] > 0).any()
    loaded = deeppart.load(tmp_path / "ckpt", keys="frozen", sign_key_file=tmp_path / "key")
    assert torch.equal(loaded["frozen"], state(3)["frozen"])
    exported = export(tmp_path / "ckpt", tmp_path / "out.h5", sign_key_file=tmp_path / "key")
    assert exported.step == 3


def test_local_parts_alone(tmp_path: Path) -> None:
    """They have no manifest: their own signatures must do."""
    more = {"local_dir": str(tmp_path / "local"), "every": {"persistent": 0}}
    save(tmp_path, 1, 2, **more)
    assert restore(tmp_path, **more)[0] == 2
    (path,) = tmp_path.glob("local/*/step-000000000002*/part-*")
    part = PartImage.parse(path.read_bytes())
    part.chunks[-1].update(encoded=bytes(len(part.chunks[-1]["encoded"])), raw_digest=None)
    path.write_bytes(part.encode())
    assert deeppart_restores_anything(tmp_path, more)
    step, explanation = restore(tmp_path, **more)
    assert step == 1
    assert any("signature of part 0 of step 2 does not hold" in line for line in explanation)
    for other in tmp_path.glob("local/*/step-000000000001*/part-*"):
        other.unlink()
    with pytest.raises(RestoreError, match="no checkpoint can be recovered"):  # and does not begin anew
        restore(tmp_path, **more)


def deeppart_restores_anything(root: Path, more: dict[str, Any]) -> bool:
    """Without a key, the forged step is taken."""
    copy = root / "copy"
    copy_as_original(root / "ckpt", copy / "ckpt")
    shutil.copytree(root / "local", copy / "local")
    restored = live()
    config = settings(copy, **{**more, "local_dir": str(copy / "local")}, sign_key_file=None)
    with deeppart.Checkpointer(config) as checkpointer:
        return checkpointer.restore(restored) == 2


def forge_step(root: Path, step: int, edit: Edit) -> None:
    """Change the part of a step and make every unkeyed digest right, in the manifest too; signatures stay."""
    path, manifest_path = only(root, step), only(root, step, "manifest")
    part = PartImage.parse(path.read_bytes())
    edit(part)
    path.write_bytes(part.encode())
    line = manifest_path.read_bytes().partition(b"\n")[0]
    plain = manifest_path.read_bytes().replace(line, line.partition(b" blake2b=")[0], 1)
    manifest = ManifestImage.parse(plain)
    manifest.name({path.name: path.read_bytes()})
    forged = manifest.encode().partition(b"\n")
    manifest_path.write_bytes(forged[0] + line[-len(SIGNATURE) :] + b"\n" + forged[2])


def _zeros(part: PartImage) -> None:
    own = next(row for row in part.chunks if not row["base"])
    own.update(encoded=bytes(len(own["encoded"])), raw_digest=None)


def test_a_forged_step_gives_way_to_an_older_one_and_that_is_said(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, compression="none")
    forge_step(tmp_path, 2, _zeros)
    wrong = deeppart.load(tmp_path / "ckpt")
    assert not torch.equal(wrong["changing"], state(2)["changing"])  # without a key
    step, explanation = restore(tmp_path)
    assert step == 1
    assert any("step 2" in line and "signature of the manifest does not hold" in line for line in explanation)
    with pytest.warns(deeppart.DeeppartWarning, match="step 2 is newer, and cannot be used: the signature"):
        assert deeppart.load(tmp_path / "ckpt", sign_key_file=tmp_path / "key")["step"] == 1
    with pytest.raises(SignatureError):
        deeppart.load(tmp_path / "ckpt", step=2, sign_key_file=tmp_path / "key")
    with pytest.raises(RestoreError, match="step 2 cannot be recovered"):
        state_, config = live(), settings(tmp_path)
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.restore(state_, step=2)


def test_a_forged_part_beside_a_true_manifest(tmp_path: Path) -> None:
    """The manifest names parts by digests that can be forged; their own signatures cannot."""
    save(tmp_path, 1, 2, compression="none")
    other = tmp_path / "other"
    other.mkdir()
    save(other, 1, 2, compression="none", sign_key_file=str(key_file(tmp_path, OTHER, "other key")))
    shutil.copyfile(only(other, 2), only(tmp_path, 2))
    step, explanation = restore(tmp_path)
    assert step == 1
    assert any("not the one the manifest names" in line for line in explanation)


def test_an_older_step_cannot_be_played_for_a_newer_one(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, incremental=False)
    shutil.copyfile(only(tmp_path, 1), only(tmp_path, 2))
    assert restore(tmp_path)[0] == 1
    shutil.copyfile(only(tmp_path, 1, "manifest"), only(tmp_path, 2, "manifest"))
    assert restore(tmp_path)[0] == 1


def test_a_base_is_not_believed(tmp_path: Path) -> None:
    """A base is another step's file, here a forged one whose own digests, and those of its footer, are right."""
    save(tmp_path, 1, 2, compression="none")
    base = only(tmp_path, 1)
    data = bytearray(base.read_bytes())
    data[5000:5008] = bytes(8) if data[5000:5008] != bytes(8) else b"12345678"
    base.unlink()
    base.write_bytes(data)
    with pytest.raises(CorruptFileError):
        deeppart.load(tmp_path / "ckpt", step=2, sign_key_file=tmp_path / "key")
    with pytest.raises(deeppart.RestoreError, match="step 1: no other source"):  # nor where it is the part itself
        restore(tmp_path)


def test_bytes_of_a_base_with_the_same_xxh3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strong digest of a chunk in a base stands in the part that refers to it."""
    save(tmp_path, 1, 2, compression="none")
    with FileSource(only(tmp_path, 2)) as source:
        reader = PartReader(source, where="here", signing=SIGNING)
        chunk = int(np.flatnonzero(reader.chunks["base"] > 0)[0])
        right = bytes(reader.read_chunk(chunk))
        expected = bytes(reader.chunks["encoded_digest"][chunk])
        monkeypatch.setattr("deeppart.part.reader.xxhash.xxh3_128_digest", lambda _: expected)
        with pytest.raises(SignatureError):
            reader.check_chunk(chunk, memoryview(right[:-1] + bytes([right[-1] ^ 1])))


def test_unsigned_steps_are_refused_with_a_key(tmp_path: Path) -> None:
    save(tmp_path, 1, sign_key_file=None)
    with pytest.raises(RestoreError, match="not signed"):
        restore(tmp_path)
    with pytest.raises(RestoreError, match="not signed"):
        deeppart.load(tmp_path / "ckpt", sign_key_file=tmp_path / "key")
    with pytest.raises(SignatureError, match="not signed"):
        deeppart.load(tmp_path / "ckpt", step=1, sign_key_file=tmp_path / "key")


def test_keys_are_changed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    key_file(tmp_path, OTHER, "new")
    keys = [str(tmp_path / "new"), str(tmp_path / "key")]
    with pytest.raises(RestoreError, match="another key"):
        restore(tmp_path, sign_key_file=keys[0])
    assert restore(tmp_path, sign_key_file=keys)[0] == 1
    save(tmp_path, 2, sign_key_file=keys)
    assert restore(tmp_path, sign_key_file=keys[0])[0] == 2  # the first signs
    assert restore(tmp_path, sign_key_file=keys[1])[0] == 1


def test_keep_counts_signed_steps_only(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    forge_step(tmp_path, 2, lambda part: part.meta.update(more=1))
    with deeppart.Checkpointer(settings(tmp_path, keep={"persistent": 2})) as checkpointer:
        unusable = "newer steps in the directory cannot be used as they are: step 2"
        with pytest.warns(deeppart.DeeppartWarning, match=unusable):
            checkpointer.restore(live())
        checkpointer.checkpoint(state(3), step=3).wait("persistent")
    assert {key.step for key in committed_steps(PosixStore(tmp_path / "ckpt"))} >= {1, 3}


def test_nothing_of_the_key_is_left_behind(tmp_path: Path) -> None:
    save(tmp_path, 1, local_dir=str(tmp_path / "local"))
    derived = forge.key_of(SECRET)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "key":
            data = path.read_bytes()
            assert all(each not in data for each in (SECRET, derived, SECRET.hex().encode(), derived.hex().encode()))
    assert SECRET.hex() not in repr(settings(tmp_path))


def test_commands(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, compression="none")
    root, key = tmp_path / "ckpt", tmp_path / "key"
    with_key = ("--sign-key-file", key)
    assert "is signed; its signatures were not checked" in cli_support.call("verify", root)
    assert "is signed; its signatures were not checked" in cli_support.call("show", root)
    assert "not checked" not in cli_support.call("verify", root, *with_key)
    assert "not checked" not in cli_support.call("show", root, *with_key)
    document = cli_support.call_json("verify", root, "--all", *with_key)
    assert document["good"] and document["signatures_checked"]
    assert all(step["signed"] for step in document["steps"])
    assert cli_support.call_json("show", root, *with_key)["signature_checked"]
    cli_support.call("ls", root, *with_key)
    cli_support.call("export", root, tmp_path / "out.h5", *with_key)
    assert cli_support.call_json("explain", root, *with_key)["step"] == 2
    forge_step(tmp_path, 2, _zeros)
    assert cli_support.call_json("verify", root)["good"]  # without a key all is well
    text = cli_support.call("verify", root, *with_key, code=1)
    assert "the signature of the manifest does not hold" in text
    states = {step["step"]: step["state"] for step in cli_support.call_json("ls", root, *with_key)["steps"]}
    assert states == {1: "complete", 2: "damaged"}
    assert cli_support.call_json("explain", root, *with_key)["step"] == 1
    assert "not used" in cli_support.call(
        "verify", root, "--sign-key-file", key_file(tmp_path, name="k", mode=0o644), code=2
    )
