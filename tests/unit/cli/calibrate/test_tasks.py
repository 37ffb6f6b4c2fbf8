"""What a calibration is asked for, as it travels between processes."""

from __future__ import annotations

from deeppart.cli.calibrate.tasks import SaveTask, Tasks, read_tasks, tasks_json


def test_tasks_travel_as_json() -> None:
    lazy = SaveTask(
        1 << 10, 2, local=False, persistent=True, flush_bandwidth=1e6, capture="lazy", restore=True, shards=2
    )
    tasks = Tasks((SaveTask(1 << 20, 8), lazy), "/a", "/b", ("float32",))
    assert read_tasks(tasks_json(tasks)) == tasks
