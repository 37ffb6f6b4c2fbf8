"""How fast trainings go: what was measured, and in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from deeppart_simulator.cluster.applications import divided, packed, read_application

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import MODELS, application, write_trace

MODEL = MODELS["scales"]


def test_measured_placements_and_batches_between(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert (app.batch, app.most_batch, app.least_local, app.most_local) == (32, 512, 8, 64)
    assert app.times((1, 2), 16).step_s == pytest.approx(float(MODEL.step_s(2, 3, 16)))
    assert app.times((2, 1), 16) == app.times((1, 2), 16) == app.times((0, 1, 2), 16)
    between = app.times((2, 2), 24)
    assert between.step_s == pytest.approx((app.times((2, 2), 16).step_s + app.times((2, 2), 32).step_s) / 2)
    assert between.step_s - between.sync_s == pytest.approx(float(MODEL.accumulated_s(24)))


def test_placements_between_measured_ones(tmp_path: Path) -> None:
    found = application(tmp_path).times((1,) * 6, 16)
    assert found.step_s == pytest.approx(float(MODEL.step_s(6, 6, 16)), rel=0.05)


@pytest.mark.parametrize(("placement", "local"), [((1, 2), 7), ((1, 2), 65), ((1,) * 6, 100), ((2,) * 16, 8)])
def test_what_was_not_measured_is_refused(tmp_path: Path, placement: tuple[int, ...], local: int) -> None:
    with pytest.raises(ConfigError, match="was not measured"):
        application(tmp_path).times(placement, local)


def test_progress_iterations_and_noise(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert [app.progress(epoch) for epoch in (0, 1, 5)] == [0.0, 300.0, 1500.0]
    assert app.iterations(32, 4) == pytest.approx(1500.0)
    assert app.iterations(80, 4) == pytest.approx((app.iterations(32, 4) + app.iterations(128, 4)) / 2)
    assert app.noise(100, 2) == (1.0, 8.0)
    with pytest.raises(ConfigError, match="a batch of scales"):
        app.noise(513, 0)


def test_a_batch_is_divided_among_gpus_and_micro_batches(tmp_path: Path) -> None:
    app = application(tmp_path)
    assert divided(128, 4, app) == (32, 0)
    assert divided(512, 4, app) == (64, 1)
    assert divided(64, 1, app) == (32, 1)  # one GPU needs two for the noise
    assert divided(32, 1, app) == (32, 0)
    assert packed(7, 4) == (4, 3) and packed(8, 4) == (4, 4)


def test_tables_that_say_nothing(tmp_path: Path) -> None:
    archive = write_trace(tmp_path)
    with pytest.raises(ConfigError, match="lacks a table"):
        read_application(archive, "other")
    (tmp_path / "traces" / "stays" / "placements.csv").write_text("placement,local_bsz\n1,8\n")
    with pytest.raises(ConfigError, match="say nothing"):
        read_application(archive, "stays")
