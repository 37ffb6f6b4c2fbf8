"""The demo, small: whatever it claims is so, with its own kill and its own copies of directories."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from rich.console import Console

from tests.mpi import launch, launchers

EXAMPLES = launchers.ROOT / "examples"
TINY = ("--layers", "1", "--width", "48", "--heads", "2", "--context", "16", "--batch", "2")


@pytest.mark.now_and_then(2)
def test_what_the_demo_claims_is_so(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")  # `make venv` installs it for the demo
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("demo")

    def run(ranks: int, arguments: list[str], folder: Path, timeout: float) -> str:
        """As demo_jobs.run does, sooner. The job that is killed is the demo's own."""
        return launch.run_ranks(ranks, Path(arguments[0]), *arguments[1:], timeout=timeout).logs[0]

    monkeypatch.setattr(module, "run", run)
    plan = module.Plan(steps=24, every=4, megabytes=4, rounds=1, bandwidth=250e3, model=TINY)
    with (tmp_path / "printed").open("w") as printed:
        console = Console(file=printed, highlight=False, width=110)
        demo = module.Demo(plan=plan, disk=tmp_path, memory=memory, console=console)
        curves = module.tell_story(demo)
        costs = module.measure_costs(demo)
    assert demo.broken == [], (tmp_path / "printed").read_text()
    assert "deeppart" in costs["median"] and len(costs["median"]) == 4
    module.draw(curves, costs, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
