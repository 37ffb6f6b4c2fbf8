"""What a calibration is asked for, as it travels between processes."""

from __future__ import annotations

from deeppart.cli.calibrate.tasks import SaveTask, Tasks, read_tasks, tasks_json


def test_tasks_travel_as_json() -> None:
    lazy = SaveTask(
        1 << 10,
        2,
        local=False,
        persistent=True,
        flush_bandwidth=1e6,
        capture="lazy",
        after="lose",
        shards=2,
        nodes=True,
    )
    tasks = Tasks(
        (SaveTask(1 << 20, 8), lazy, SaveTask(9, 1, nodes=True, partner=True, parity_group=4, compression="tensor")),
        "/a",
        "/b",
        ("float32",),
    )
    assert read_tasks(tasks_json(tasks)) == tasks
