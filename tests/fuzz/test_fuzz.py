"""A few seconds of fuzzing; that it notices a library without its checks; and what it has found before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.images import ManifestImage, PartImage
from tests.fuzz.running import Case, Worker, working
from tests.fuzz.seeds import SIGNED, Files, make_seeds
from tests.sampling import sampled

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("fuzz")

KEPT = Path(__file__).parents[1] / "golden" / "forged"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with working() as started:
        yield started


@pytest.mark.timeout(900)
def test_a_short_campaign_finds_nothing(worker: Worker) -> None:
    played = Campaign(11, worker)
    played.play(cases=40, tell=print)
    assert not played.finds, [find.problem for find in played.finds.values()]
    assert played.runs == 40 and played.ways > 20


def edited(files: Files, breakage: str) -> Files:
    """A case that the check which is taken out would have refused."""
    part = next(name for name in files if name.endswith(".dpp"))
    image = PartImage.parse(files[part])
    name = next(name for name in files if name.endswith("/manifest"))
    manifest = ManifestImage.parse(files[name])
    if breakage == "digests":
        data = bytearray(files[part])
        data[4200] ^= 1
        return {**files, part: bytes(data)}
    for structure in () if breakage == "signatures" else (image.meta["structure"], manifest.document["structure"]):
        if breakage == "types":
            next(leaf for leaf in structure["leaves"] if leaf[0] == "numpy")[1] = ",,,"
        else:
            next(leaf for leaf in structure["leaves"] if len(leaf) > 3 and leaf[0] == "torch")[3][1] = 1 << 40
    if breakage == "signatures":
        row = image.chunks[0]
        row["encoded"], row["raw_digest"] = bytes(len(row["encoded"])), None
    encoded = image.encode()
    manifest.name({part.rpartition("/")[2]: encoded})
    return {**files, part: encoded, name: manifest.encode()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("breakage", ["digests", "types", "aliases", "signatures"])
def test_a_library_without_its_checks_is_noticed(worker: Worker, breakage: str) -> None:
    """What it lets through without the check is refused with it."""
    played = Campaign(5, worker)
    seed = SIGNED if breakage == "signatures" else "odd"
    case = Case(seed, edited(played.seeds[seed].files, breakage), breakage == "digests", 0)
    assert played.problems_of(case) == []
    assert played.problems_of(case, breakage)
    assert played.problems_of(case) == [], "the library is whole again"


def test_the_same_number_gives_the_same_cases(worker: Worker) -> None:
    one, other = Campaign(3, worker), Campaign(3, worker)
    assert [one.make(number) for number in range(20)] == [other.make(number) for number in range(20)]
    assert one.make(20) != one.make(21)
    again = {name: seed.files for name, seed in make_seeds().items()}
    assert again == {name: seed.files for name, seed in one.seeds.items()}


@pytest.mark.timeout(600)
def test_what_was_found_before_is_mended(worker: Worker) -> None:
    folders = sorted(KEPT.iterdir())
    assert folders
    played = Campaign(0, worker)
    for folder in sampled(folders, 2):
        told = json.loads((folder / "find.json").read_text())
        paths = [path for path in (folder / "files").rglob("*") if path.is_file()]
        files = {str(path.relative_to(folder / "files")): path.read_bytes() for path in paths}
        assert played.problems_of(Case(told["seed"], files, told["exact"], told["choice"])) == [], folder.name
