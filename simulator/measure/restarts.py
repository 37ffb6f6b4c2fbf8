"""The phases of a restart, from the log of a job (``deeppart run --log``)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from deeppart.errors import ConfigError

from ..machine.record import Restart

#: After which ``deeppart run`` takes a silent node for lost; that a process has ended it knows at once.
_DETECT_S = 3.0


def restart_of(log: Path) -> Restart:
    """Medians of the restarts in a log.

    Its first start imports everything, later ones are forked: what the first takes longer are the imports.

    Raises:
        ConfigError: it cannot be read, or has no restart after which the job has trained.
    """
    try:
        events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        starts = [each for each in events if each["event"] == "training" and "start_s" in each]
        (first, *_), again = [[each for each in starts if (each["epoch"] == 1) is cold] for cold in (True, False)]
        start_s, kill_s, step_s = (
            median(float(each[key]) for each in again) for key in ("start_s", "kill_s", "step_s")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:  # StatisticsError is a ValueError
        raise ConfigError(
            "there is no restart in the log",
            expected="events of deeppart run, one of them training after a failure",
            found=str(error),
            where=f"--run-log {log}",
        ) from error
    return Restart(
        detect=_DETECT_S,
        relaunch=kill_s,
        imports=max(float(first["start_s"]) - start_s, 0.0),
        communicator=start_s,
        first_step=step_s,
        mode="standby",
    )
