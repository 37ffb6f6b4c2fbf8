"""Signed checkpoints: with a key, nothing passes that its holder has not written, whatever digests are made right."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

import deeppart
from deeppart.config import Config
from deeppart.errors import ConfigError, CorruptFileError, FormatError, RestoreError, SignatureError
from deeppart.model import Attempt
from deeppart.offline.export.archive import export
from deeppart.part import FileSource, MemorySource, PartReader, Signing, decode_manifest
from deeppart.storage.key_files import read_key_files
from deeppart.storage.persistent import committed_steps, read_manifest
from tests.copying import copy_as_original
from tests.fuzz.images import ManifestImage, PartImage
from tests.golden import forge, make_signed, make_v1
from tests.golden.make_v2 import LATER_RAW
from tests.unit import cli_support

SECRET, OTHER = bytes(range(32)), b"another key, long enough to be one"
SIGNING = Signing([SECRET])
GOLDEN = Path(__file__).parents[1] / "golden"
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


# --- formats ----------------------------------------------------------------------------------------------------------

Edit = Callable[[PartImage], object]


def small_part() -> bytes:
    """Signed, by hand: two chunks, of which one is compressed."""
    import zstandard

    packed = zstandard.compress(bytes(5000))
    first = bytes(range(200))
    rows = [
        forge.chunk_row(first, dtype=b"uint8"),
        forge.chunk_row(packed, offset=4296, raw_length=5000, codec=1, raw_digest=xxhash.xxh3_128_digest(bytes(5000))),
    ]
    return forge.part(
        first + packed,
        rows,
        [forge.span_row(0, 0, 200, 0), forge.span_row(1, 0, 5000, 200)],
        raw_bytes=5200,
        head=forge.header(version=3),
        meta=b'{"a":1}',
        secret=SECRET,
        strong=[forge.strong_digest(first), forge.strong_digest(packed)],
    )


def read_all(data: bytes, signing: Signing | None = SIGNING, **expected: Any) -> bytes:
    reader = PartReader(MemorySource(data), where="here", signing=signing, **expected)
    return b"".join(bytes(reader.read_chunk(chunk)) for chunk in range(len(reader.chunks)))


def test_a_part_signed_by_hand_is_read() -> None:
    assert read_all(small_part()) == bytes(range(200)) + bytes(5000)
    assert read_all(small_part(), None) == read_all(small_part())
    assert PartReader(MemorySource(small_part()), where="here").signed


def test_the_image_of_a_signed_part_is_exact() -> None:
    assert PartImage.parse(small_part()).encode() == small_part()


def _set(name: str, value: Any) -> Edit:
    return lambda part: part.head.__setitem__(name, value)


def _row(table: str, name: str, value: Any) -> Edit:
    return lambda part: getattr(part, table)[0].__setitem__(name, value)


def _other_bytes(part: PartImage) -> None:
    part.chunks[0].update(encoded=bytes(reversed(part.chunks[0]["encoded"])), raw_digest=None)


def _old_digest(part: PartImage) -> None:
    _other_bytes(part)
    part.chunks[0]["strong"] = forge.strong_digest(bytes(range(200)))


def _exchanged(part: PartImage) -> None:
    part.spans[0]["leaf"], part.spans[1]["leaf"] = 1, 0


EDITS: dict[str, Edit] = {
    "lineage": _set("lineage", bytes(16)),
    "session": _set("session", bytes(16)),
    "sequence": _set("sequence", 8),
    "step": _set("step", 1300),
    "rank": _set("rank", 1),
    "world_size": _set("world_size", 3),
    "dtype": _row("chunks", "dtype", b"float32"),
    "flags": _row("chunks", "flags", 1),
    "leaf": _row("spans", "leaf", 5),
    "table": _row("spans", "table", 1),
    "start": _row("spans", "start", 8),
    "spans exchanged": _exchanged,
    "meta": lambda part: part.meta.update(a=2),
    "bytes of a chunk": _other_bytes,
    "bytes of a chunk, strong digest left": _old_digest,
    "strong digest alone": lambda part: part.chunks[0].update(strong=bytes(32)),
    "tag": lambda part: setattr(part, "tag", bytes([part.tag[0] ^ 1]) + part.tag[1:]),
    "chunk removed": lambda part: (part.chunks.pop(), part.spans.pop()),
}


@pytest.mark.parametrize("name", EDITS)
def test_no_field_of_a_signed_part_can_be_changed(name: str) -> None:
    part = PartImage.parse(small_part())
    EDITS[name](part)
    forged = part.encode()
    assert forged != small_part()
    if name != "strong digest alone":
        read_all(forged, None)  # all other digests are right
    with pytest.raises(SignatureError) as caught:
        read_all(forged)
    assert "here" in str(caught.value) and caught.value.todo and "step" in str(caught.value)


def test_every_bit_of_index_and_header_is_covered() -> None:
    """Whatever is flipped, with the unkeyed digests computed anew."""
    data = bytearray(small_part())
    image = PartImage.parse(bytes(data))
    index_offset = 4096 + sum(len(row["encoded"]) for row in image.chunks)
    generator = np.random.default_rng(3)
    places = [*range(8, 72), *range(index_offset, len(data) - 64)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(generator.integers(8))
        head = bytes(flipped[:4088])
        flipped[4088:4096] = xxhash.xxh3_64_digest(head)
        if not index_offset + 40 <= place < index_offset + 48:
            flipped[index_offset + 40 : index_offset + 48] = flipped[4088:4096]
        index = bytes(flipped[index_offset:-64])
        flipped[-32:-16] = xxhash.xxh3_128_digest(index)
        flipped[-8:] = xxhash.xxh3_64_digest(bytes(flipped[-64:-8]))
        with pytest.raises(FormatError):
            read_all(bytes(flipped))


def test_a_chunk_with_another_content_of_the_same_xxh3_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collisions of XXH3 can be made; here one is had by making both digests of the table hold."""
    reader = PartReader(MemorySource(small_part()), where="here", signing=SIGNING)
    without = PartReader(MemorySource(small_part()), where="here")
    wrong = bytes(200)
    expected = reader.chunks["encoded_digest"][0].tobytes()
    monkeypatch.setattr("deeppart.part.reader.xxhash.xxh3_128_digest", lambda _: expected)
    with pytest.raises(SignatureError, match="strong digest"):
        reader.check_chunk(0, memoryview(wrong))
    without.check_chunk(0, memoryview(wrong))


def test_unsigned_parts_and_other_keys_are_refused() -> None:
    with pytest.raises(SignatureError, match="part 0 of step 1200 is not signed"):
        PartReader(MemorySource(forge.simple_part()), where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="does not hold"):
        PartReader(MemorySource(small_part()), where="here", signing=Signing([OTHER]))
    read_all(small_part(), Signing([OTHER, SECRET]))
    stripped = PartImage.parse(small_part())
    stripped.head["version"], stripped.tag = 2, b""
    read_all(stripped.encode(), None)
    with pytest.raises(SignatureError, match="is not signed"):
        read_all(stripped.encode())


@pytest.mark.parametrize("field", ["step", "rank", "session", "lineage", "sequence"])
def test_a_part_cannot_be_played_again_for_another(field: str) -> None:
    reader = PartReader(MemorySource(small_part()), where="here", signing=SIGNING)
    attempt, rank = reader.attempt, reader.rank
    if field == "rank":
        rank = 1
    else:
        other: dict[str, Any] = {field: "ab" * 16 if field in ("session", "lineage") else 9}
        attempt = replace(attempt, **other)
    with pytest.raises(CorruptFileError, match="not the one"):
        read_all(small_part(), expected_attempt=attempt, expected_rank=rank)


def test_manifests() -> None:
    document = forge.manifest_document()
    signed = forge.seal(document, secret=SECRET)
    manifest = decode_manifest(signed, where="here", signing=SIGNING)
    assert manifest.signed and manifest == decode_manifest(forge.seal(document), where="here")
    assert not decode_manifest(forge.seal(document), where="here").signed
    assert decode_manifest(signed, where="here").signed
    changes: tuple[Callable[[Any], None], ...] = (
        lambda d: d["attempt"].update(step=1300),
        lambda d: d["attempt"].update(session="ab" * 16),
        lambda d: d.update(created="2026-11-22T04:05:06+00:00"),
        lambda d: d["parts"][0].update(index_digest="0" * 32),
        lambda d: d["parts"][1].update(nbytes=6000),
        lambda d: d.update(compared=None),
        lambda d: d["structure"].update(kind="list"),
    )
    for change in changes:
        changed = forge.manifest_document()
        change(changed)
        body = forge.seal(changed).partition(b"\n")
        forged = body[0] + signed.partition(b"\n")[0][-len(SIGNATURE) :] + b"\n" + body[2]
        assert decode_manifest(forged, where="here").signed
        with pytest.raises(SignatureError, match="does not hold"):
            decode_manifest(forged, where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="is not signed"):
        decode_manifest(forge.seal(document), where="here", signing=SIGNING)
    with pytest.raises(SignatureError, match="does not hold"):
        decode_manifest(signed, where="here", signing=Signing([OTHER]))
    for version in (1, 2):
        with pytest.raises(CorruptFileError, match="cannot be signed"):
            decode_manifest(forge.seal(document, version=version, secret=SECRET), where="here", signing=SIGNING)


def test_golden_files() -> None:
    data = (GOLDEN / "signed" / "manifest").read_bytes()
    assert data == make_signed.make_manifest()
    assert decode_manifest(data, where="golden", signing=make_signed.SIGNING).attempt == make_v1.ATTEMPT
    part = (GOLDEN / "signed" / "part-00000-of-00002.dpp").read_bytes()
    assert part == make_signed.make_part()[0]
    source = MemorySource(part)
    source.beside = lambda name: FileSource(GOLDEN / "v1" / "part-00000-of-00002.dpp")  # type: ignore[method-assign]
    reader = PartReader(source, where="golden", signing=make_signed.SIGNING)
    assert b"".join(bytes(reader.read_chunk(chunk)) for chunk in range(2)) == LATER_RAW


# --- key files --------------------------------------------------------------------------------------------------------


def test_key_files(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    assert read_key_files(path).fingerprints == SIGNING.fingerprints  # type: ignore[union-attr]
    assert read_key_files([str(path)]).fingerprints == SIGNING.fingerprints  # type: ignore[union-attr]
    assert read_key_files(None) is None
    assert read_key_files([]) is None
    key_file(tmp_path, mode=0o400)
    read_key_files(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644, 0o666])
def test_a_key_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    path = key_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError) as caught:
        read_key_files(path)
    assert str(path) in str(caught.value) and caught.value.todo


@pytest.mark.parametrize("length", [0, 31, (64 << 10) + 1])
def test_keys_of_impossible_lengths(length: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="length"):
        read_key_files(key_file(tmp_path, bytes(length)))


def test_what_is_no_key_file(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(path)
    os.mkfifo(fifo, 0o600)
    for wrong in (link, fifo, tmp_path, tmp_path / "none", path / "below"):
        with pytest.raises(ConfigError) as caught:
            read_key_files(wrong)
        assert caught.value.todo
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="not used"):
        read_key_files(key_file(open_to_all))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="not used"):
        read_key_files(path)


def test_keys_are_never_shown() -> None:
    texts = [repr(SIGNING), str(SIGNING), repr(Signing([SECRET, OTHER])), *SIGNING.fingerprints]
    for text in texts:
        assert SECRET.hex() not in text and forge.key_of(SECRET).hex() not in text
    with pytest.raises(TypeError):
        pickle.dumps(SIGNING)


def test_tags_for_one_purpose_do_not_serve_another() -> None:
    assert not SIGNING.accepts(SIGNING.tag(b"dpp part", b"data"), b"dpp manifest", b"data")
    assert SIGNING.tag(b"dpp part", b"da", b"ta") == forge.tag(SECRET, b"dpp part", b"data")


# --- whole checkpoints ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "tensor", "zstd"])
@pytest.mark.parametrize("local", [False, True])
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


def test_without_a_key_files_are_as_ever(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, sign_key_file=None)
    assert b"blake2b" not in only(tmp_path, 1, "manifest").read_bytes()[:200]
    assert [only(tmp_path, step).read_bytes()[8] for step in (1, 2)] == [1, 2]


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
    base = only(tmp_path, 2, "base-*")
    data = bytearray(base.read_bytes())
    data[5000:5008] = bytes(8) if data[5000:5008] != bytes(8) else b"12345678"
    base.unlink()
    base.write_bytes(data)
    with pytest.raises(CorruptFileError):
        deeppart.load(tmp_path / "ckpt", step=2, sign_key_file=tmp_path / "key")
    assert restore(tmp_path)[0] == 1


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
        with pytest.warns(deeppart.DeeppartWarning, match="newer in the directory, but of no use as they are: step 2"):
            checkpointer.restore(live())
        checkpointer.checkpoint(state(3), step=3).wait("persistent")
    assert {key.step for key in committed_steps(tmp_path / "ckpt")} >= {1, 3}


def test_nothing_of_the_key_is_left_behind(tmp_path: Path) -> None:
    save(tmp_path, 1, local_dir=str(tmp_path / "local"))
    derived = forge.key_of(SECRET)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "key":
            data = path.read_bytes()
            assert all(each not in data for each in (SECRET, derived, SECRET.hex().encode(), derived.hex().encode()))
    assert SECRET.hex() not in repr(settings(tmp_path))


def test_identities_of_a_signed_manifest(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (key,) = committed_steps(tmp_path / "ckpt")
    manifest = read_manifest(tmp_path / "ckpt", key, SIGNING)
    assert manifest.signed and isinstance(manifest.attempt, Attempt)


# --- commands ---------------------------------------------------------------------------------------------------------


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
    assert cli_support.call_json("restore", root, "--dry-run", *with_key)["step"] == 2
    forge_step(tmp_path, 2, _zeros)
    assert cli_support.call_json("verify", root)["good"]  # without a key all is well
    text = cli_support.call("verify", root, *with_key, code=1)
    assert "the signature of the manifest does not hold" in text
    states = {step["step"]: step["state"] for step in cli_support.call_json("ls", root, *with_key)["steps"]}
    assert states == {1: "complete", 2: "damaged"}
    assert cli_support.call_json("restore", root, "--dry-run", *with_key)["step"] == 1
    assert "not used" in cli_support.call(
        "verify", root, "--sign-key-file", key_file(tmp_path, name="k", mode=0o644), code=2
    )


def test_verify_of_a_forged_part(tmp_path: Path) -> None:
    save(tmp_path, 1, local_dir=str(tmp_path / "local"), compression="none")
    root, key = tmp_path / "ckpt", ("--sign-key-file", tmp_path / "key")
    local = ("--local", tmp_path / "local")
    assert cli_support.call_json("verify", root, *local, *key)["good"]
    (path,) = tmp_path.glob("local/*/step-*/part-*")
    part = PartImage.parse(path.read_bytes())
    _zeros(part)
    path.write_bytes(part.encode())
    assert cli_support.call_json("verify", root, *local)["good"]
    found = cli_support.call_json("verify", root, *local, *key, code=1)
    assert "signature of part 0 of step 1 does not hold" in found["nodes"]["damage"][0]["message"]
    assert cli_support.call_json("verify", root, *local, *key, "--repair")["repairs"][0]["repaired"]
    assert cli_support.call_json("verify", root, *local, *key)["good"]
