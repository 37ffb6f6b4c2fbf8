"""Damage to every region of every file: another copy, an earlier step or a typed error; never wrong bytes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError, FormatError, RestoreError, StorageError
from deeppart.part import FileSource, PartReader
from deeppart.session import process_sessions
from deeppart.storage import LOCK_NAME
from tests.copying import copy_as_original
from tests.sampling import sampled
from tests.states import difference

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("damage")

STEPS = (1, 2)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=where if where.is_dir() else tmp_path_factory.mktemp("damage")) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def sound(memory: Path) -> Path:
    directory = memory / "sound"
    with deeppart.Checkpointer(config(directory, keep={"local": 2, "persistent": 2})) as ck:
        for step in STEPS:
            pending = ck.checkpoint(state(step), step)
            pending.wait("local", timeout=200)
            pending.wait("persistent", timeout=200)
    return directory


@pytest.fixture
def directory(sound: Path, memory: Path) -> Iterator[Path]:
    copy = Path(tempfile.mkdtemp(dir=memory)) / "copy"
    copy_as_original(sound, copy)
    yield copy
    process_sessions.settle(60.0)  # nothing waits for a session that was left after an error: it may still be open
    shutil.rmtree(copy.parent)


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "local"), "timeout": 30.0, "compression": "tensor"}
    return deeppart.Config(persistent_dir=str(directory / "persistent"), **(defaults | settings))


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "noise": torch.randint(0, 256, (20_000,), dtype=torch.uint8, generator=generator),  # stored raw
        "zeros": torch.full((9000,), step, dtype=torch.int64),  # compressed
        "array": np.arange(50) * step,
        "value": [step, str(step)],
    }


def blank() -> dict[str, Any]:
    return {
        "noise": torch.zeros(20_000, dtype=torch.uint8),
        "zeros": torch.zeros(9000, dtype=torch.int64),
        "array": np.zeros(50, int),
        "value": [0, ""],
    }


def part(directory: Path, level: str, step: int = 2) -> Path:
    (found,) = (directory / level).glob(f"**/step-{step:012d}-*/part-*.dpp")
    return found


def manifest(directory: Path, step: int = 2) -> Path:
    (found,) = (directory / "persistent").glob(f"step-{step:012d}-*")
    return found / "manifest"


def restored(directory: Path, **settings: Any) -> tuple[int | None, tuple[str, ...]]:
    """Restore; what comes back is whole or the live state is untouched and the error is one of ours."""
    live = blank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, **settings)) as ck:
            try:
                step = ck.restore(live)
            except DeeppartError:
                assert difference(blank(), live) is None
                raise
            assert difference(state(step) if step else blank(), live) is None
            return step, ck.explanation


def loaded(directory: Path, step: int | None = None) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)  # where a newer one is of no use
        found = deeppart.load(directory / "persistent", step)
    assert difference(state(found["value"][0]), found) is None
    return int(found["value"][0])


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def truncate(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def regions(path: Path) -> dict[str, tuple[int, int]]:
    """Name -> (first, last) byte of each region of a part file."""
    with FileSource(path) as source:
        reader = PartReader(source, where=str(path))
        chunks = [(int(c["offset"]), int(c["offset"] + c["encoded_length"])) for c in reader.chunks]
        codecs = {int(c["codec"]) for c in reader.chunks}
        end, size = chunks[-1][1], source.size
    assert len(codecs) == 2, "raw and compressed chunks"
    tables = end + 64 + 80 * len(chunks)
    found = {"magic": (0, 8), "header": (8, 80), "header padding": (80, 4088), "header digest": (4088, 4096)}
    found |= {f"chunk {i}": bounds for i, bounds in enumerate(chunks)}
    found |= {"index head": (end, end + 64), "chunk table": (end + 64, tables), "rest": (tables, size - 64)}
    return found | {"footer": (size - 64, size)}


def positions(path: Path) -> list[int]:
    """Both ends of every region and some bytes between."""
    places: set[int] = set()
    for first, last in regions(path).values():
        places |= {first, last - 1, (first + last) // 2, first + (last - first) // 3}
    return sorted(places)


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_flipped_part_gives_way_to_that_of_the_other_level_and_both_to_the_step_before(directory: Path) -> None:
    one, other = part(directory, "local"), part(directory, "persistent")
    assert regions(one) == regions(other)
    for number, at in enumerate(positions(one)):
        flip(one, at)
        step, lines = restored(directory)
        assert step == 2 and lines[-1] == "step 2: 1 of 1 parts persistent; saved by 1 rank", (at, lines)
        assert any(str(one) in line for line in lines[:-1]), "and says why"
        flip(other, at)
        if number % 2 == 0:
            step, lines = restored(directory)
            assert step == 1 and all(any(str(path) in line for line in lines) for path in (one, other))
        flip(one, at)
        with pytest.raises(FormatError):
            loaded(directory)
        assert loaded(directory, 1) == 1
        flip(other, at)
    flip(other, at)
    assert restored(directory) == (2, ("step 2: 1 of 1 parts local; saved by 1 rank",))


def test_nothing_sound_left_is_an_error_that_lists_it_all(directory: Path) -> None:
    for level in ("local", "persistent"):
        for step in STEPS:
            flip(part(directory, level, step), 4200)
    with pytest.raises(RestoreError) as caught:
        restored(directory)
    text = str(caught.value)
    assert all(str(part(directory, level, step)) in text for level in ("local", "persistent") for step in STEPS)


def test_truncated_and_lengthened_parts(directory: Path) -> None:
    one, other = part(directory, "local"), part(directory, "persistent")
    data = one.read_bytes()
    places = sorted({0, 1, len(data) - 1, *(p for bounds in regions(one).values() for p in bounds)} - {len(data)})
    versions = [data[:length] for length in places]
    versions += [data[: len(data) // 2].ljust(len(data), b"\0"), data + b"x", data + data, b"\0" * len(data)]
    for version in versions:
        one.write_bytes(version)
        assert restored(directory)[0] == 2
        other.write_bytes(version)
        assert restored(directory)[0] == 1
        with pytest.raises(FormatError):
            loaded(directory)
        one.write_bytes(data)
        other.write_bytes(data)
    other.write_bytes(version)
    assert restored(directory)[0] == 2


def swap_contents(one: Path, other: Path) -> None:
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)


def test_parts_of_other_steps_in_place_of_each_other(directory: Path) -> None:
    """Every digest of such a file holds; it is another attempt's."""
    for level in ("local", "persistent"):
        swap_contents(part(directory, level, 1), part(directory, level, 2))
    with pytest.raises(FormatError):
        loaded(directory)
    with pytest.raises(RestoreError, match=r"another file is in this place: part-.* of step 2, which belongs at "):
        restored(directory)
    swap_contents(part(directory, "local", 1), part(directory, "local", 2))
    assert restored(directory)[0] == 2


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "directory": lambda path: path.mkdir(),
    "full directory": lambda path: (path / "x").mkdir(parents=True),
    "fifo": lambda path: os.mkfifo(path),
    "dangling link": lambda path: path.symlink_to("/nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
    "empty": lambda path: path.touch(),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_something_else_in_place_of_a_file(directory: Path, kind: str) -> None:
    for path in (part(directory, "local"), part(directory, "persistent")):
        path.unlink()
        REPLACEMENTS[kind](path)
    assert restored(directory)[0] == 1
    with pytest.raises((FormatError, StorageError)):
        loaded(directory)
    manifest(directory, 1).unlink()
    REPLACEMENTS[kind](manifest(directory, 1))
    assert restored(directory)[0] == 1, "its local copy is whole"
    with pytest.raises(RestoreError):
        restored(directory, local_dir=None)


# --- manifests --------------------------------------------------------------------------------------------------------


def test_flipped_manifests(directory: Path) -> None:
    path = manifest(directory)
    size = path.stat().st_size
    places = [*range(0, 90, 3), *range(90, size, size // 40), size - 1]
    for at, mask in sampled(itertools.product(places, (0x01, 0x80)), 4, kind=lambda place: (place[0] < 90, place[1])):
        flip(path, at, mask)
        assert restored(directory)[0] == 2, "the local copy is whole and needs no manifest"
        step, lines = restored(directory, local_dir=None)
        assert step == 1 and any("step 2 (persistent)" in line for line in lines)
        assert loaded(directory) == 1
        with pytest.raises(FormatError):
            loaded(directory, 2)
        flip(path, at, mask)
    assert loaded(directory) == 2


@pytest.mark.parametrize("left", ["flipped", "emptied"])
def test_a_damaged_manifest_is_not_taken_for_no_checkpoint(directory: Path, left: str) -> None:
    """Training from scratch over a damaged checkpoint would be silent loss: restore must not return None."""
    shutil.rmtree(directory / "local")
    for step in STEPS:
        flip(manifest(directory, step), 200) if left == "flipped" else os.truncate(manifest(directory, step), 0)
    with pytest.raises(RestoreError, match="step 2 \\(persistent\\)"):
        restored(directory, local_dir=None)
    with pytest.raises(RestoreError):
        loaded(directory)


# --- the directory's own files ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_garbage")
def test_every_damage_of_the_lineage_record(directory: Path) -> None:
    path = directory / "persistent" / "deeppart.json"
    data = path.read_bytes()
    versions = sampled((data[:length] for length in range(0, len(data), 7)), 2)
    flips = sampled(itertools.product(range(len(data)), (1, 0x80)), 4, kind=lambda flipped: flipped[1])
    versions += [data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :] for at, mask in flips]
    versions += [b"[]", b"5", b"null", b'"x"', b"{}", b'{"lineage": 5}', b'{"lineage": "../../x"}', b"[" * 50_000]
    anew = 0
    for version in versions:
        path.write_bytes(version)
        assert loaded(directory) == 2, "load needs no lineage"
        assert restored(directory)[0] == 2
        anew += path.read_bytes() != version
    assert anew > len(versions) // 4
    path.write_bytes(data)
    (directory / "persistent" / LOCK_NAME).unlink()  # the last job has noted another lineage there
    assert restored(directory)[1] == ("step 2: 1 of 1 parts local; saved by 1 rank",)


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_damaged_lineage_record_is_written_anew(directory: Path, is_noted: bool) -> None:
    """As the lock file notes it, and local copies are found; with a damaged lock file, there is a new lineage."""
    path = directory / "persistent" / "deeppart.json"
    restored(directory)  # the lock file was not copied
    before = json.loads(path.read_bytes())["lineage"]
    path.write_bytes(path.read_bytes().replace(b'"lineage"', b'"lineagd"'))
    if not is_noted:
        (directory / "persistent" / LOCK_NAME).write_bytes(b"")
    step, lines = restored(directory)
    assert step == 2 and ("local" if is_noted else "persistent") in lines[-1]
    assert (json.loads(path.read_bytes())["lineage"] == before) == is_noted


def test_a_lost_lineage_record_begins_a_new_lineage(directory: Path) -> None:
    """Local copies are then nobody's, persistent checkpoints are still checkpoints."""
    (directory / "persistent" / "deeppart.json").unlink()
    step, lines = restored(directory)
    assert step == 2 and lines[-1] == "step 2: 1 of 1 parts persistent; saved by 1 rank"
    assert len(list((directory / "local").iterdir())) == 2


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage", b"[]", b"null", b"[" * 50_000, b"x" * 100_000])
def test_a_damaged_lock_file_keeps_nobody_out(directory: Path, content: bytes) -> None:
    (directory / "persistent" / ".deeppart.lock").write_bytes(content)
    assert restored(directory)[0] == 2


def test_local_copies_survive_the_loss_of_the_persistent_directory(directory: Path) -> None:
    """All steps are gone but the lineage record: the local level alone brings the job back."""
    for step in STEPS:
        shutil.rmtree(manifest(directory, step).parent)
    came, lines = restored(directory)
    assert came == 2 and lines == ("step 2: 1 of 1 parts local; saved by 1 rank",)


@pytest.mark.parametrize("place", [0, 40, -1, None])
def test_the_only_file_left_is_not_taken_for_nothing(tmp_path: Path, place: int | None) -> None:
    """Training would start over, and its first checkpoints would remove what may still be repaired."""
    config = deeppart.Config(
        persistent_dir=str(tmp_path / "p"), local_dir=str(tmp_path / "l"), every={"local": 1, "persistent": 0}
    )
    state = {"w": torch.arange(1000)}
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint(state, 7).wait("local", 20)
    (path,) = (tmp_path / "l").rglob("*.dpp")
    data = bytearray(path.read_bytes())
    if place is None:
        data[:] = bytes(len(data))
    else:
        data[place] ^= 1
    path.write_bytes(data)
    with deeppart.Checkpointer(config) as checkpointer, pytest.raises(deeppart.RestoreError, match="part-00000"):
        checkpointer.restore(state)
    assert path.read_bytes() == data
