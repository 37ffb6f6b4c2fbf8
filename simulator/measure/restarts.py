"""The pieces of a restart, from the log of a job (``deeppart run --log``)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

from deeppart.errors import ConfigError

from ..machine.record import Restart

#: Time after which ``deeppart run`` considers a silent node lost; the end of a process is noticed at once.
_DETECT_S = 3.0


def restart_of(log: Path) -> Restart:
    """Medians of the restarts in a log.

    The first start imports everything, and later ones are forked: the difference is the time of the imports.

    Raises:
        ConfigError: the log cannot be read, or has no restart after which the job trained.
    """
    try:
        *lines, _ = log.read_text(encoding="utf-8").split("\n")  # the last one may be torn
        events = [json.loads(line) for line in lines]
        starts = [each for each in events if each["event"] == "training" and "start_s" in each]
        (first, *_), again = [[each for each in starts if (each["epoch"] == 1) is cold] for cold in (True, False)]
        start_s, kill_s, step_s = (
            median(float(each[key]) for each in again) for key in ("start_s", "kill_s", "step_s")
        )
        cold_s = float(first["start_s"])
        if not all(0.0 <= seconds < math.inf for seconds in (cold_s, start_s, kill_s, step_s)):
            raise ValueError(f"{cold_s}, {start_s}, {kill_s}, {step_s} s")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            "there is no restart in the log",
            expected="events of deeppart run, one of them training after a failure",
            found=str(error),
            where=f"--run-log {log}",
        ) from error
    return Restart(
        detect=_DETECT_S,
        relaunch=kill_s,
        imports=max(cold_s - start_s, 0.0),
        communicator=start_s,
        first_step=step_s,
        mode="standby",
    )
