"""``deeppart-sim scale``: one checkpoint on more and more ranks, and what blocked time costs."""

from __future__ import annotations

from typing import Any

from deeppart.partition import STRATEGIES

from ..budget import BLOCKED_S, MONTH_DAYS, PERIODS_S, Row, costs_of_blocking, missing, ways_of
from ..report.blocks import Result
from ..report.sections import goodput_section, job_sections, scaling_section
from ..timing.scale import study
from .options import (
    CHECKPOINTS,
    OUTPUT,
    PICTURE,
    SOURCE,
    Asked,
    FiniteRange,
    command,
    given,
    impossible,
    no_effect,
    option,
    read_counts,
    read_time,
)
from .output import flat, job_result


@command(
    "Show how one checkpoint scales with ranks.",
    *SOURCE, *OUTPUT, PICTURE,
    option("--ranks", default="1,2,4,8,16,32,64,128,256,512,1024", metavar="N,N,...", help="Numbers of ranks."),
    option(
        "--strategy", "strategies", default="deeppart,rank0", metavar="NAME,...", help=f"Of {', '.join(STRATEGIES)}."
    ),
    option("--goodput", is_flag=True, help="Also what blocked time costs, on the most ranks; --csv then has that."),
    option("--every", metavar="TIME,...", help="Training between two calls, for --goodput.  [default: 1min,10min,1h]"),
    option("--blocked", metavar="TIME,...",
           help="What a call blocks for, for --goodput.  [default: 10ms,100ms,1s,10s,100s]"),
    option("--days", type=FiniteRange(min=0, min_open=True), default=MONTH_DAYS,
           help="In which it costs, for --goodput."),
    *CHECKPOINTS,
)  # fmt: skip
def scale(asked: Asked) -> Result:
    """Time of each stage and level of one checkpoint, speed-up and efficiency, against the number of ranks.

    With --goodput also what calls that block for so long take of the goodput, in node-hours and money. Beside
    these stands what this library, whole tensors as DCP deals them out, and torch.save are predicted to block for.
    """
    numbers = read_counts(asked.ranks, "--ranks")
    job = asked.job(max(numbers))
    if given("flush_share") and asked.report_path is None:
        raise no_effect("--flush-share", "it limits how often checkpoints are flushed, for the advice of --report")
    for name in ("every", "blocked", "days"):
        if given(name) and not asked.goodput:
            raise no_effect(f"--{name}", "it is about --goodput", "add --goodput, or leave it out")
    strategies = [name.strip() for name in asked.strategies.split(",")]
    costs = list[Row]()
    if asked.goodput:
        periods = PERIODS_S if asked.every is None else _times(asked.every, "--every")
        blocked = BLOCKED_S if asked.blocked is None else _times(asked.blocked, "--blocked")
        costs = costs_of_blocking(job.machine, job.nodes, periods, blocked, ways_of(job), asked.days)
    points = study(job, numbers, strategies)
    document: dict[str, Any] = {"points": points}
    sections = [scaling_section(points, job)]
    if costs:
        known = {"days": asked.days, "currency": job.machine.price.currency, "missing": missing(job.machine)}
        document |= {"goodput": known | {"rows": costs}}
        sections.append(goodput_section(job, costs, asked.days))
    return job_result(
        "scale", job, document, sections,
        rows=[flat(each) for each in (costs or points)],
        page=lambda found: job_sections(job, found),
    )  # fmt: skip


def _times(text: str, name: str) -> list[float]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise impossible(name, "times, separated by commas, such as 1min,10min", repr(text))
    return [read_time(word, name) for word in words]
