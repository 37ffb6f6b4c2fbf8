"""What is left when the power goes is what was promised; and a sync that this needs is missed when it is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.power.recording import Event
from tests.faults.power.trial import Plan, cut_everywhere, record
from tests.sampling import sampled

#: One worker runs all of these, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("power")

PLAN = Plan(seed=1, local=True, keep_local=1, keep_persistent=1, steps=3, capture="eager", elements=300)
WAYS = 12

Recorded = tuple[list[Event], list[str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(PLAN, tmp_path_factory.mktemp("power") / "job")


@pytest.mark.timeout(300)
def test_power_lost_at_any_point(recorded: Recorded, tmp_path: Path) -> None:
    points = range(len(recorded[0]) + 1)
    result = cut_everywhere(PLAN, *recorded, tmp_path, 4, cuts=sampled(points, 2))
    assert not result.problems, result.examples
    assert result.cuts == len(sampled(points, 2)) > 50 and result.states > 40 and result.told >= 6


@pytest.mark.parametrize(
    "site",
    [
        "DurableFile.commit: part",
        "DurableFile.commit: manifest",
        "DurableFile.commit: deeppart.json",
        "sync_directory of DurableFile.commit: step directory",
        "sync_directory of DurableFile._begin: directory",
        "sync_directory of PosixStore.delete: step directory",
    ],
)
@pytest.mark.timeout(300)
def test_a_sync_that_is_left_out_is_missed(recorded: Recorded, tmp_path: Path, site: str) -> None:
    events, first = recorded
    assert site in {event.site for event in events}, sorted({event.site for event in events})
    result = cut_everywhere(PLAN, events, first, tmp_path, WAYS, (site,), until_wrong=True)
    assert result.problems
