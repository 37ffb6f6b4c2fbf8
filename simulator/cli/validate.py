"""``deeppart-sim validate``: predictions against the library itself, on this machine."""

from __future__ import annotations

from typing import Any

import click

from ..machine.files import read_machine
from ..machine.record import Machine
from ..measure.calibrate import calibrate
from ..measure.validate import Comparison, cases_of
from ..measure.validate import validate as compare
from ..report.blocks import Result
from ..report.sections import validation_section
from .options import MEASURING, OUTPUT, Asked, command, option, read_counts
from .output import flat


@command(
    "Compare predictions with real checkpoints.",
    *OUTPUT,
    option("--machine", metavar="FILE",
           help="This machine, from `deeppart-sim calibrate`; if left out, it is calibrated before, for each number of "
           "ranks."),
    option("--ranks", default="1,2,4", metavar="N,N,...", help="Numbers of ranks."),
    option("--passes", type=click.IntRange(min=1), default=1, help="Number of calibrations and comparisons."),
    option("--only", multiple=True, metavar="KIND",
           help="Kinds of checkpoints, as in the first column; may be given again."),
    *MEASURING,
)  # fmt: skip
def validate(asked: Asked) -> Result:
    """Run real checkpoints under mpirun, predict each from a calibration made before, and compare.

    Without --machine it is calibrated again for each pass. "spread" is how far apart the middle half of the measured
    times lies, and "varied" how far the passes' own medians do: an error that is smaller may be the measurement's. Exit
    code 1 if half of the errors are above 5 % or one is above 15 %.
    """
    known = None if asked.machine is None else read_machine(asked.machine)
    numbers = read_counts(asked.ranks, "--ranks")
    cases_of(asked.only, quick=asked.quick)
    directories = asked.directories()

    def machine_for(count: int) -> Machine:
        progress = asked.status.update
        return known or calibrate("this machine", count, directories, quick=asked.quick, progress=progress)

    found = compare(
        machine_for, directories, numbers, passes=asked.passes, quick=asked.quick, kinds=asked.only,
        progress=asked.status.update,
    )  # fmt: skip
    rows = [_row(each) for each in found.comparisons]
    document = {
        "format": "deeppart-sim-validation",
        "version": 1,
        "median_error": found.median_error,
        "worst_error": found.worst_error,
        "met": found.met,
        "missed": len(found.missed),
        "missed_beyond_noise": len(found.of_the_model),
        "comparisons": rows,
    }
    return Result("Predicted and measured", document, [validation_section(found)], rows, good=found.met)


def _row(comparison: Comparison) -> dict[str, Any]:
    return flat(comparison) | {"noise": comparison.noise, "error": comparison.error}
