"""``deeppart diff``: two checkpoints, leaf by leaf."""

from __future__ import annotations

import math

import click

from deeppart.cli.options import Place, place_argument, rank_option, sign_key_option
from deeppart.part import Signing


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("a finite number is expected")
    return value


@click.command(short_help="Compare two checkpoints.")
@place_argument("a", "A")
@place_argument("b", "B")
@click.argument("keys", metavar="[KEYS]...", nargs=-1)
@rank_option("Rank whose per-rank leaves are compared; those of every rank if left out.")
@click.option(
    "--rtol",
    metavar="X",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Numbers are equal if they differ by at most X times the larger of the two.",
)
@click.option(
    "--atol",
    metavar="X",
    type=click.FloatRange(min=0),
    callback=_finite,
    help="Numbers are equal if they differ by at most X; 0: if they are the same number.",
)
@sign_key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def diff(
    a: Place,
    b: Place,
    keys: tuple[str, ...],
    rank: int | None,
    rtol: float | None,
    atol: float | None,
    signing: Signing | None,
    as_json: bool,
) -> int:
    """Compare the checkpoints A and B, each of them DIR, for its newest step, or DIR@STEP.

    Every byte of both is read and checked. Bit for bit, unless --rtol or --atol is given; together they allow
    ATOL + RTOL * max(abs(a), abs(b)). KEYS are globs over paths, as for deeppart.load: model '*.bias'.

    Exit code 0 if they are equal, 1 if they differ, and 2 for all else: wrong usage, no such checkpoint, damage.
    """
    from deeppart.cli.differences import show_differences  # imports torch, which completion need not wait for

    return show_differences(a, b, keys, rank, (rtol, atol), signing, as_json=as_json)
