"""``deeppart advise``: predicts how a job would do on other numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from deeppart.cli.options import directory_argument
from deeppart.cli.output import command, count, line, table
from deeppart.elastic.goodput import Advice, Limits, Size
from deeppart.elastic.goodput import advise as advise_sizes
from deeppart.errors import ConfigError
from deeppart.model import show_seconds, show_share


@dataclass(frozen=True, slots=True)
class Advised:
    """The record that ``advise`` prints. Fields: docs/commands.md, advise."""

    directory: Path
    limits: Limits = field(metadata={"json": "inline"})
    advice: Advice = field(metadata={"json": "inline"})
    is_noise_known: bool = field(metadata={"json": False})


def _read_ranks(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < len(word) < 10 and int(word) for word in words):
        raise ConfigError(
            "impossible value for --ranks", expected="numbers of ranks, separated by commas", found=repr(text),
            where="--ranks",
        )  # fmt: skip
    return [int(word) for word in words]


def _table(found: Advice) -> Table:
    headings = ("ranks", "nodes", "batch", "per rank", "step", "samples/s", "efficiency", "goodput", "of a rank", "")
    shown = table(*headings, left=("",))
    for size in found.sizes:
        note = "pays most" if size == found.best else "" if size.per_rank >= found.worth else "too many ranks"
        measured = "measured" if size.profiled else ""
        shown.add_row(
            str(size.ranks),
            str(size.nodes),
            f"{size.batch:,}",
            _micro_batches(size),
            show_seconds(size.step_s),
            _rate(size.samples_per_s),
            show_share(size.efficiency),
            _rate(size.goodput),
            show_share(size.per_rank),
            ", ".join(filter(None, (measured, note))),
        )
    return shown


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _micro_batches(size: Size) -> str:
    return f"{size.local_batch:,}" if not size.accumulation else f"{size.accumulation + 1} x {size.local_batch:,}"


def _lines(advised: Advised) -> Iterator[Any]:
    found, best = advised.advice, advised.advice.best
    ranks, batch = advised.limits.profiled_ranks, advised.limits.profiled_batch
    yield _table(found)
    yield line(
        f"{count(best.ranks, 'rank')} with a batch of {best.batch:,}: the most goodput where each rank does at least "
        f"{show_share(found.worth)} of what one does at best"
    )
    yield line(
        f"from steps on up to {count(ranks, 'rank')} and with batches of up to {batch:,}; nothing is said beyond twice "
        "the ranks or four times the batch"
    )
    if not advised.is_noise_known:
        yield line("the noise of gradients was not measured: the batch stays as it is")
    if found.capped:
        yield line(f"larger batches are allowed, but too far from what was measured: {4 * batch:,} at most here")


@command("Say which number of ranks pays for a job.", _lines)
@directory_argument
@click.option("--ranks", metavar="N,N,...", help="Sizes; up to twice what was measured if left out.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples of a step, of all ranks; the best if left out.")
@click.option(
    "--worth",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="More ranks pay while each does this share of what one does where it does most.",
)
def advise(directory: Path, ranks: str | None, batch: int | None, worth: float) -> Advised:
    """Say what to expect of the job in DIR on other numbers of ranks: step time, goodput, the best batch, and which
    size pays.

    Goodput is samples per second, times what each is worth beside one of the job's first batch. It is fitted to what
    the job has measured of its steps itself. Nothing is said of more than twice the ranks, or four times the batch,
    that were measured.
    """
    from deeppart.elastic.profile import PROFILE_NAME, goodput_of, read_profile

    profile = read_profile(directory)
    if profile is None:
        raise ConfigError(
            "this job has no profile",
            expected=f"{PROFILE_NAME}, which a job with deeppart.elastic writes",
            found="no such file",
            where=str(directory),
            todo="train for some steps with deeppart.elastic.ElasticDataLoader first",
        )
    limits = profile.limits
    sizes = None if ranks is None else _read_ranks(ranks)
    goodput, bounds = goodput_of(profile)
    found = advise_sizes(goodput, bounds, limits, profile.ranks, batch=batch, ranks=sizes, worth=worth)
    return Advised(directory, limits, found, profile.noise is not None)
