"""``deeppart advise``: sizes, which one pays, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deeppart.elastic.goodput import Bounds, GradientNoise
from deeppart.elastic.profile import write_profile
from tests.unit.cli_support import call, call_json
from tests.unit.elastic.goodput.models import TRUE
from tests.unit.elastic.test_profile import profile_of_true

NOISE, BOUNDS = GradientNoise(1.0, 30.0, 32), Bounds(32, 4096, 64)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_profile(tmp_path, replace(profile_of_true(), noise=NOISE, bounds=BOUNDS))
    return tmp_path


def test_each_size_up_to_twice_the_ranks(job: Path) -> None:
    found = call_json("advise", job)
    assert [size["ranks"] for size in found["sizes"]] == [1, 2, 3, 4, 8, 12, 16]
    assert (found["profiled_ranks"], found["profiled_batch"]) == (8, 512) and found["capped"]
    paying = [size for size in found["sizes"] if size["per_rank"] >= 0.5]
    assert found["best"]["ranks"] == max(paying, key=lambda size: size["goodput"])["ranks"] < 16
    for size in found["sizes"]:
        true_s = float(TRUE.step_s(size["nodes"], size["ranks"], size["local_batch"], size["accumulation"]))
        assert size["step_s"] == pytest.approx(true_s, rel=0.05)
        assert size["efficiency"] == pytest.approx(float(NOISE.efficiency(size["batch"])))


def test_it_says_which_size_pays(job: Path) -> None:
    said = call("advise", job, "--worth", "0.9")
    (line,) = (line for line in said.splitlines() if "pays most" in line)
    assert line.split()[0] == str(call_json("advise", job, "--worth", "0.9")["best"]["ranks"])
    assert "up to 8 ranks" in said and "too many ranks" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ranks", "4,17"), "17 ranks are too far"),
        (("--batch", "2049"), "a batch of 2049 is too far"),
        (("--ranks", "x"), "impossible value for --ranks"),
        (("--ranks", "0"), "impossible value for --ranks"),
    ],
)
def test_what_was_not_measured_nearly_is_refused(job: Path, options: tuple[str, ...], said: str) -> None:
    assert said in call("advise", job, *options, code=2)
    assert call_json("advise", job, *options, code=2)["error"]["exit_code"] == 2
