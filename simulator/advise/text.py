"""Advice as text: reasons, notes, a bill, and a deeppart.toml that the library loads."""

from __future__ import annotations

import math

from deeppart.model import LEVELS, Level, show_bytes, show_seconds, show_share
from deeppart.plan.interval import cost_per_call_s

from ..budget import MONTH_DAYS, SHARE_WORDS, USEFUL, Bill, bill, space_lines
from ..campaign.costs import followed
from ..campaign.failures import struck_nodes
from ..machine.record import DAY_S, Machine
from ..timing.stages import Job
from .choose import Advice, Choice, describe, least_restart, steps_between

_FROM: dict[str, str] = {
    Level.LOCAL: "the node's own storage",
    Level.PARTNER: "the copy on another node",
    Level.PARITY: "the parity of its group",
    Level.PERSISTENT: "the parallel file system",
}
#: Events that are rarer than once in ten years are not mentioned.
_LEAST_RATE = 1 / (10 * 365 * DAY_S)
#: Calls that save nothing are not mentioned if they take less than this fraction of the time.
_LEAST_IDLE = 1e-4
#: If flushes use this much of the job's share of the file system, that share limits their frequency.
_FULL = 0.97
_INSTEAD = "the advice without --step-time is for a script that calls only when something is due, and saves this"
_KINDS = {
    "process": "a process dies",
    "node": "a node is lost",
    "system": "everything stops",
}


def in_a_sentence(chosen: Choice) -> str:
    """The advice and its cost in one sentence."""
    often = show_seconds(chosen.cadence.period_s)
    call = f"every {often}: each blocks"
    if chosen.step_s:
        steps = steps_between(chosen.costs, chosen.cadence, chosen.step_s)
        call = f"at every step: one in {steps:,}, every {often}, saves and blocks" if steps > 1 else call
    return (
        f"Call checkpoint() {call} {show_seconds(chosen.blocked_s)}, a failure costs {show_seconds(chosen.work_s)} of "
        f"work and {show_seconds(chosen.back_s)} to come back, {show_share(chosen.waste.total)} of the time in all."
    )


def reasons(advice: Advice) -> list[str]:
    """The reasons for the advice, in sentences."""
    chosen = advice.chosen
    lines = [_failures_line(chosen, kind) for kind, rate in chosen.survival.rates_per_s.items() if rate > 0]
    lines += _coincidence_lines(chosen)
    lines.append(_preemption_line(advice))
    waste, least = chosen.waste, least_restart(advice.front)
    lines.append(
        f"{describe(chosen.job)}: {show_share(waste.total)} of the time is not new training. Coming back takes "
        f"{show_share(least)} whatever is chosen; of the rest, {show_share(waste.cost)} is for writing, "
        f"{show_share(waste.rework)} for doing again what was lost"
        + (f", {show_share(waste.restart - least)} for coming back slower" if waste.restart > least + 5e-5 else "")
    )
    if chosen.idle >= _LEAST_IDLE:
        lines.append(f"{_idle_line(chosen)}; {_INSTEAD}")
    best = advice.choices[0]
    if best.waste.total < chosen.waste.total:
        lines.append(
            f"{describe(best.job)}, a call every {show_seconds(best.cadence.period_s)}, would waste "
            f"{show_share(chosen.waste.total - best.waste.total)} of the time less, and write "
            f"{show_bytes(best.drained_daily_bytes)} a day to the file system and {show_bytes(best.node_daily_bytes)} "
            "a day to each node"
        )
    for cost in chosen.costs:
        lines.append(_level_line(chosen, cost.name))
    lines.append(_flush_line(chosen))
    lines += space_lines(chosen.job.machine, chosen.space, chosen.node_daily_bytes, chosen.drained_daily_bytes)
    lines += [f"no room for {candidate}: {why}" for candidate, why in advice.too_large.items()]
    lines.append(_codec_line(advice))
    lines += bursts(chosen.job)
    return [line for line in lines if line]


def config_toml(advice: Advice) -> str:
    """A deeppart.toml without directories, which the user adds."""
    chosen, cadence = advice.chosen, advice.chosen.cadence
    job, step_s = chosen.job, chosen.step_s
    period = cadence.period_s
    counts = dict.fromkeys(LEVELS, 0)
    counts |= followed(cadence)
    call = f"call checkpoint() every {show_seconds(period)}; `every` counts these calls"
    if step_s > 0:
        steps = steps_between(chosen.costs, cadence, step_s)
        counts = {level: count * steps for level, count in counts.items()}
        call = f"call checkpoint() at every training step of {show_seconds(step_s)}; `every` counts steps"
    lines = [
        f"# Advice of deeppart-sim for {job.state.name} on {job.ranks} ranks of {job.machine.name}:",
        f"# {call}.",
        f"# Expected: {show_share(chosen.waste.total)} of the time is not new training; a call blocks "
        f"{show_seconds(chosen.blocked_s)};",
        f"# {_written(chosen)}.",
        *([] if chosen.idle < _LEAST_IDLE else [f"# {_idle_line(chosen)};", f"# {_INSTEAD}."]),
        "# Set persistent_dir and local_dir yourself.",
        "",
        "every = { " + ", ".join(f"{level} = {count}" for level, count in counts.items()) + " }",
        f'compression = "{job.compression}"',
        f'capture = "{job.capture}"',
    ]
    if job.protection.parity_group:
        lines += [
            f"parity_group = {job.protection.parity_group}",
            f"parity_tolerate = {job.protection.parity_tolerate}",
        ]
    lines.append(f"kappa = {round(job.machine.memory.kappa_bytes)}")
    if math.isfinite(job.flush_bandwidth):
        lines.append(f"flush_bandwidth = {job.flush_bandwidth:.6g}")
    return "\n".join(lines) + "\n"


def _written(chosen: Choice) -> str:
    flushed = f"{show_bytes(chosen.drained_daily_bytes)} a day go to the file system"
    if not chosen.space.on_node:
        return f"nothing on the nodes' own storage; {flushed}"
    return (
        f"{show_bytes(chosen.space.on_node)} on each node's storage, where {show_bytes(chosen.node_daily_bytes)} a day "
        f"are written; {flushed}"
    )


def _idle_line(chosen: Choice) -> str:
    return (
        f"calls at which nothing is due compare the ranks' states all the same: "
        f"{show_seconds(chosen.world.times.plan)} each, {show_share(chosen.idle)} of the time"
    )


def _preemption_line(advice: Advice) -> str:
    chosen, scheduling = advice.chosen, advice.scheduling
    if math.isinf(scheduling.preemption_s):
        return ""
    line = f"preempted every {show_seconds(scheduling.preemption_s)} on average, "
    line += f"told {show_seconds(scheduling.notice_s)} before" if scheduling.notice_s else "without notice"
    last = f"a last checkpoint, complete after {show_seconds(max(chosen.complete_s.values()))}"
    if chosen.leaving:
        return f"{line}: time for {last}; no work is lost, and the next start takes {show_share(chosen.leaving)}"
    return f"{line}: no time for {last}; a failure that only the parallel file system survives"


def _failures_line(choice: Choice, kind: str) -> str:
    rate = choice.survival.rates_per_s[kind]
    level = choice.survival.needs[kind]
    return f"{_words(choice, kind)} every {show_seconds(1 / rate)} on average; what survives is {_FROM[level]}"


def _words(choice: Choice, kind: str) -> str:
    nodes = struck_nodes(choice.job.machine.failures, kind)
    return _KINDS.get(kind, f"a group of {nodes:,} nodes ({kind}) is lost")


def _coincidence_lines(chosen: Choice) -> list[str]:
    """Lines about failures that need a higher level because they follow another failure."""
    lines = []
    for kind, need in chosen.survival.needs.items():
        rate = chosen.survival.rates_per_s[kind]
        for level, share in chosen.survival.shares[kind].items() if rate else ():
            if level != need and share * rate > _LEAST_RATE:
                often = show_seconds(1 / (share * rate))
                lines.append(
                    f"once in {often} {_words(chosen, kind)} while another loss has not been made good yet; what "
                    f"survives both is {_FROM[level]}"
                )
    return lines


def _level_line(choice: Choice, level: str) -> str:
    cost = next(cost for cost in choice.costs if cost.name == level)
    rate = (
        f"needed every {show_seconds(1 / cost.failures_per_s)}" if cost.failures_per_s else "needed by no failure alone"
    )
    often = show_seconds(choice.cadence.interval_s(level))
    return (
        f"{level}: every {often}; costs training {show_seconds(cost.cost_s)}, complete after "
        f"{show_seconds(cost.latency_s)}, {rate}, back in {show_seconds(cost.restart_s)}"
    )


def _flush_line(chosen: Choice) -> str:
    """The bytes written, and the fraction of the file system's time for that."""
    if not chosen.drained_daily_bytes:
        return ""
    apart_s = next(cost.busy_s for cost in chosen.costs if cost.name == Level.PERSISTENT)
    busy, most = apart_s / chosen.cadence.interval_s(Level.PERSISTENT), ""
    if math.isinf(chosen.job.flush_bandwidth):  # flushes are kept apart so that they take no more than their share
        busy, share = busy * chosen.job.flush_share, chosen.job.flush_share
        most = f", of at most {show_share(share)} (--flush-share)"
        most += ": with more, it would be written more often" if busy > _FULL * share else ""
    return (
        f"written: {show_bytes(chosen.node_daily_bytes)} a day to each node's storage; "
        f"{show_bytes(chosen.drained_daily_bytes)} a day to the file system, which takes {show_share(busy)} of the "
        f"time{most}"
    )


def _codec_line(advice: Advice) -> str:
    chosen = advice.chosen
    for other in advice.choices:
        same = other.job.protection == chosen.job.protection and other.job.compression != chosen.job.compression
        if same:
            with_codec, without = (other, chosen) if other.job.compression != "none" else (chosen, other)
            encoded, raw = (show_seconds(max(each.complete_s.values())) for each in (with_codec, without))
            return f"compression: a checkpoint is complete everywhere after {encoded} with it and {raw} without"
    return ""


# --- notes ------------------------------------------------------------------------------------------------------------


def what_if(machine: Machine, nodes: int, spares: int = 0) -> list[str]:
    """A sentence if the machine has fewer nodes than needed, so that the result is hypothetical."""
    if nodes + spares <= machine.nodes:
        return []
    needed = f"{nodes:,} nodes" + (f" and {spares:,} spare ones" if spares else "")
    return [
        f"a what-if: {needed}, and {machine.name} has {machine.nodes:,}; its file system, its network and each node's "
        "failures are taken as they are"
    ]


def bursts(job: Job) -> list[str]:
    """A sentence if failures are not exponential, as the advice assumes."""
    shape = job.machine.failures.shape
    if shape == 1:
        return []
    words = "in bursts" if shape < 1 else "more evenly than at random"
    return [
        f"failures of {job.machine.name} come {words} (Weibull, shape {shape:g}); this advice takes them to be "
        "exponential with the same means: `deeppart-sim campaign` with the same options draws them as they come"
    ]


# --- bills ------------------------------------------------------------------------------------------------------------


_BLOCKED, _SLOWED, _REDONE = (SHARE_WORDS[name] for name in ("blocked", "slowed", "lost"))
_BACK = "coming back"


def bill_of(choice: Choice) -> Bill:
    """The expected bill of 30 days, by the model of the advice."""
    waste, every = choice.waste, choice.cadence.every
    per_call_s = cost_per_call_s(choice.costs, [every[cost.name] for cost in choice.costs])
    saving = choice.cadence.waste.cost * (1 - choice.leaving)  # without calls that save nothing
    slowed = saving * (1 - min(1.0, choice.blocked_s / per_call_s)) if per_call_s else saving
    shares = {
        USEFUL: 1 - waste.total,
        _BLOCKED: waste.cost - slowed,
        _SLOWED: slowed,
        _REDONE: waste.rework,
        _BACK: waste.restart,
    }
    return bill(choice.job.machine, choice.job.nodes, MONTH_DAYS * DAY_S, shares)
