"""What a job has measured: kept by kind of step, merged, as JSON in a file, and fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deeppart.elastic.goodput import Bounds, GradientNoise
from deeppart.elastic.profile import (
    PROFILE_NAME,
    Profile,
    TimedSteps,
    goodput_of,
    read_profile,
    write_profile,
)
from deeppart.errors import ConfigError, CorruptFileError
from tests.unit.cli_support import call, call_json, save
from tests.unit.elastic.goodput.models import SIZES, TRUE


def with_step(
    profile: Profile, nodes: int, ranks: int, local: int, batch: int, seconds: float, *, accumulating: bool = False
) -> Profile:
    return profile.merged(Profile((TimedSteps(nodes, ranks, local, accumulating, 1, seconds),), batch))


def profiled(*ranks: int, seconds: float = 0.05) -> Profile:
    profile = Profile(noise=GradientNoise(1.0, 30.0, 32), bounds=Bounds(32, 4096, 64))
    for each in ranks:
        size = (-(-each // 4), each, 32, 64 * each)
        profile = with_step(profile, *size, seconds)
        profile = with_step(profile, *size, seconds / 2, accumulating=True)
    return profile


def test_a_mean_for_each_kind_of_step() -> None:
    profile = profiled(1, 8).merged(profiled(8, seconds=0.11))
    assert [timed.kind for timed in profile.times] == [
        (1, 1, 32, False),
        (1, 1, 32, True),
        (2, 8, 32, False),
        (2, 8, 32, True),
    ]
    assert [timed.count for timed in profile.times] == [1, 1, 2, 2]
    assert profile.times[2].mean_s == pytest.approx(0.08) and profile.times[3].mean_s == pytest.approx(0.04)
    (eight,) = (each for each in profile.measured() if each.ranks == 8)
    assert (eight.step_s, eight.accumulated_s) == pytest.approx((0.08, 0.04))


def test_written_over_and_read(tmp_path: Path) -> None:
    assert read_profile(tmp_path) is None
    for profile in (profiled(1), Profile(), profiled(1, 4, 8)):
        write_profile(tmp_path, profile)
        assert read_profile(tmp_path) == profile
    assert [path.name for path in tmp_path.iterdir()] == [PROFILE_NAME]


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", "null", '{"format": "deeppart-profile", "version": 2}'])
def test_a_damaged_file_is_told_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / PROFILE_NAME).write_text(text)
    with pytest.raises(CorruptFileError, match="profile") as caught:
        read_profile(tmp_path)
    assert PROFILE_NAME in str(caught.value)


def test_checkpoints_beside_it_are_as_without(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    before = call_json("ls", tmp_path)
    write_profile(tmp_path, profiled(1))
    assert call_json("ls", tmp_path) == before
    call("verify", tmp_path, "--all")
    call("prune", tmp_path, "--before", "2", "--yes")
    assert read_profile(tmp_path) == profiled(1)


def profile_of_true() -> Profile:
    """Steps on one and on two nodes, without a single one that accumulates."""
    profile = Profile()
    for nodes, ranks in SIZES:
        for local in (16, 32, 64):
            step_s = float(TRUE.step_s(nodes, ranks, local))
            profile = with_step(profile, nodes, ranks, local, local * ranks, step_s)
    return profile


def test_a_profile_is_fitted() -> None:
    found = goodput_of(profile_of_true())[0].throughput
    assert float(found.step_s(4, 16, 32)) == pytest.approx(float(TRUE.step_s(4, 16, 32)), rel=0.05)


def test_a_job_that_measured_no_noise_keeps_its_batch() -> None:
    goodput, bounds = goodput_of(profile_of_true())
    assert (bounds.batch, bounds.most_batch) == (512, 512) and float(goodput.noise.efficiency(512)) == 1.0
    goodput, bounds = goodput_of(replace(profile_of_true(), bounds=Bounds(128, 4096, 64)))
    assert bounds == Bounds(128, 128, 64)


def test_an_empty_profile_says_nothing() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        goodput_of(Profile())
