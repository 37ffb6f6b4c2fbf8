"""Scalars: what a writer gets of a report."""

from __future__ import annotations

from deeppart.telemetry import to_tensorboard
from tests.unit.telemetry.samples import report


class Writer:
    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        assert tag not in self.scalars
        self.scalars[tag] = scalar_value, global_step


def test_levels_that_are_over_and_no_others() -> None:
    writer = Writer()
    states = {"local": "done", "partner": "failed", "persistent": "running"}
    to_tensorboard(writer, report(9, stages=("capture",), **states), prefix="ckpt")
    assert {at for _, at in writer.scalars.values()} == {9}
    values = {tag.removeprefix("ckpt/"): value for tag, (value, _) in writer.scalars.items()}
    levels = {tag: value for tag, value in values.items() if tag.split("/")[0] in ("local", "partner", "persistent")}
    assert levels == {
        "local/complete": 1,
        "local/complete_after_s": 2.0,
        "local/written_bytes": 500,
        "local/unchanged_bytes": 0,
        "partner/complete": 0,
    }
    assert (values["blocked_s"], values["stages/capture_s"], values["encoded_bytes"]) == (0.25, 0.5, 800)


def test_the_step_of_the_axis_may_be_another() -> None:
    writer = Writer()
    to_tensorboard(writer, report(9), step=3)
    assert {at for _, at in writer.scalars.values()} == {3} and all(
        tag.startswith("deeppart/") for tag in writer.scalars
    )
