"""4 -> 2 -> 6 -> 3 ranks in the middle of an epoch: every sample once, and the losses of a run on one rank."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.train_job import EPOCHS, SAMPLES, STEPS
from tests.mpi.torchrun import torchrun

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


def run(directory: Path, ranks: int, steps: int, *options: str) -> None:
    directory.mkdir(exist_ok=True)
    torchrun(ranks, ["-m", "tests.elastic.train_job", str(directory), str(steps), *options], directory)


def notes(directory: Path, key: str) -> list[list[dict[str, Any]]]:
    """Of each rank, the lines that have something."""
    files = sorted(directory.glob("notes-*.jsonl"))
    return [[line for line in map(json.loads, file.read_text().splitlines()) if key in line] for file in files]


#: Steps of the first three runs, on 4, 2 and 6 ranks: the data set is changed in, and the shards.
MAP, SHARDS = (5, 3, STEPS * 2 + 2), (STEPS + 3, 4, 5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("changes", "options"), [(MAP, ("0", "sgd")), (SHARDS, ("2", "adam"))], ids=["map 0 sgd", "shards 2 adam"]
)
def test_a_training_that_changes_its_size_is_the_same_training(
    tmp_path: Path, changes: tuple[int, ...], options: tuple[str, str]
) -> None:
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    run(straight, 1, 10**6, *options)
    for ranks, steps in zip((4, 2, 6, 3), (*changes, 10**6), strict=True):
        run(changing, ranks, steps, *options)
    one, several = notes(straight, "step")[0], notes(changing, "step")
    seen = Counter(
        (line["kind"], line["epoch"], sample) for of_rank in several for line in of_rank for sample in line["samples"]
    )
    assert seen == Counter(
        (kind, epoch, sample) for kind in ("map", "shards") for epoch in range(EPOCHS) for sample in range(SAMPLES)
    )
    assert [line["step"] for line in several[0]] == [line["step"] for line in one] == list(range(1, len(one) + 1))
    assert [line["kind"] for line in one] == (["map"] * STEPS + ["shards"] * STEPS) * EPOCHS
    for line, expected in zip(several[0], one, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-10), line["step"]
    for key in ("epoch_loss", "seen", "parameters"):
        for a, b in zip(notes(changing, key)[0], notes(straight, key)[0], strict=True):
            assert a[key] == pytest.approx(b[key], rel=1e-10), key
