"""One restore of a session: reading a step, putting it into the live state, and healing its redundancy.

:func:`preview_restore` finds out what a restore would restore, before the caller has chosen items: it reads only the
documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from deeppart.access.hanging import hanging
from deeppart.comm import Comm, finish, raise_together
from deeppart.errors import CheckpointError, DeeppartWarning, RestoreError, on_ranks, say, warn_caller
from deeppart.mistaken_paths import meant_todo
from deeppart.model import Attempt, RestoreReport, show_seconds
from deeppart.nodes import Arena
from deeppart.plan.restart import Inventory, explain_sources, survey
from deeppart.recovery import (
    Ranks,
    Recovered,
    SavedStep,
    load_step,
    look_at_live,
    recover,
    refusal_of_state,
    restore_state,
    suspect_lines,
    take_inventory,
    warn_suspect,
)
from deeppart.repair import Healer, heal_recovered, healing_for
from deeppart.save import Repair
from deeppart.session.background import Background
from deeppart.session.record import Session
from deeppart.state.paths import Excluded, Path, PerRankPolicies
from deeppart.state.restore import Request


@dataclass(frozen=True, slots=True)
class Restored:
    """A step that was restored into the live state.

    Attributes:
        recovered: the step, and the sources of its parts.
        report: what was done on this rank.
        notices: warnings that rank 0 gives.
        per_rank: paths of the per-rank leaves.
    """

    recovered: Recovered
    report: RestoreReport
    notices: list[DeeppartWarning]
    per_rank: list[str]


def restore_step(
    session: Session,
    state: Any,
    step: int | None,
    policies: PerRankPolicies,
    request: Request,
    arena: Arena,
    *,
    required: bool = False,
) -> tuple[Restored | None, Inventory, tuple[str, ...]]:
    """Restore a step (collective); also what there was to restore, and lines about how it was found."""
    ranks = session.ranks(arena)
    inventories = _inventories(session, ranks, step)
    newest = next(inventories)
    is_filled = bool(survey(newest, step).candidates)
    live = look_at_live(state, request, ranks.comm, ranks.timeout, is_filled=is_filled)

    def use(recovered: Recovered) -> Restored:
        return Restored(recovered, *restore_state(ranks, recovered, live, policies, session.config.replicated))

    restored, inventory, explanation = recover(ranks, chain([newest], inventories), step, use)
    if restored is None:
        refusal = nothing_to_restore(session, explanation) if required else None
        unsaveable = refusal_of_state(live.flat, _left_out(request))
        raise_together(ranks.comm, refusal or unsaveable, ranks.doing, ranks.timeout)
        say_nothing_restored(session, explanation)
    return restored, inventory, explanation


def _inventories(session: Session, ranks: Ranks, step: int | None) -> Iterator[Inventory]:
    """What there is to restore: the newest checkpoint; if that cannot be recovered, everything (collective)."""
    inventory = _take_stock(session, ranks, newest=step is None)
    if inventory.since is None or survey(inventory, step).candidates:
        yield inventory
    if inventory.since is not None:
        yield _take_stock(session, ranks)


def _take_stock(session: Session, ranks: Ranks, *, newest: bool = False) -> Inventory:
    local = ranks.at(session.topology.directories[ranks.rank]) if session.leads_directory else None
    return take_inventory(ranks, local, session.persistent, session.lineage, session.memory, newest=newest)


def _left_out(request: Request) -> Callable[[Path], bool] | None:
    """True for paths that the configuration excludes from checkpoints; None if it excludes nothing."""
    excluded = Excluded(request.settings)
    if not excluded.patterns:
        return None
    return lambda path: any(excluded.covers(path[:end]) for end in range(1, len(path) + 1))


def preview_restore(session: Session, step: int | None, arena: Arena) -> SavedStep | None:
    """The content of a step, or of the newest recoverable one, as this rank would restore it (collective): reads only
    documents, unless they have to be rebuilt.
    """
    ranks = session.ranks(arena)

    return recover(ranks, _inventories(session, ranks, step), step, partial(load_step, ranks))[0]


def heal_redundancy(
    session: Session, background: Background, recovered: Recovered, inventory: Inventory
) -> tuple[str, ...]:
    """Submit the missing redundancy of a restored step to the pipeline."""
    pipeline = background.pipeline
    attempt, lines = recovered.attempt, list[str]()
    step = attempt.step
    healing = healing_for(session.protection, recovered, inventory)
    if healing and attempt.lineage != session.lineage:
        # Its files name their lineage, and on nodes only those of this lineage count.
        reason = "it was saved under another lineage; it is in persistent_dir, the next checkpoint is protected again"
        return (f"step {step}: its redundancy is not rebuilt: {reason}",)
    if healing.unprotected:
        count = len(healing.unprotected)
        parts = "part is" if count == 1 else "parts are"
        reason = "in persistent_dir alone, referring to earlier steps there; the next checkpoint is protected again"
        lines.append(f"step {step}: the redundancy of {count} of its parts is not rebuilt: the {parts} {reason}")
    if not healing:
        pipeline.call_notes.restored(attempt)
        return tuple(lines)
    background.retention.adopt(attempt.key)
    lines.append(f"step {step}: rebuilding redundancy in the background: {healing.describe()}")

    def run(channel: Comm, drive: Any) -> None:
        healer = Healer(channel, drive, session.node_levels, session.limit, background.arena)
        heal_recovered(healer, healing, recovered, inventory, session.protection)
        pipeline.call_notes.restored(attempt)

    pipeline.submit_repair(Repair(attempt, f"rebuilding the redundancy of step {step}", run))
    return tuple(lines)


def warn_suspects(session: Session, attempt: Attempt) -> tuple[str, ...]:
    """Warn if a restored step is suspect (collective); returns the reasons, on every rank."""
    comm, first = session.comm, session.comm.rank == 0
    lines = suspect_lines(session.persistent.store, attempt) if first else []
    message = json.dumps(lines).encode() if first else None
    what = "restore, looking for records of suspect steps"
    lines = json.loads(finish(comm, comm.broadcast(message), what, session.config.timeout))
    if first:
        warn_suspect(attempt.step, lines)
    return tuple(lines)


def warn_restored(
    session: Session, attempt: Attempt, inventory: Inventory, notices: Sequence[DeeppartWarning], *, named: bool
) -> None:
    """Warn of items that may not have been restored as expected, and of steps newer than the restored one."""
    if session.comm.rank:
        return
    for notice in notices:
        warn_caller(str(notice), type(notice))
    newer = sorted(each.attempt.step for each in inventory.committed if each.attempt.step > attempt.step)
    if newer:
        text = f"restored step {attempt.step}, but step {newer[-1]} is in the directory too"
        if named:
            text += ", and the next restore will take it as the newest"
        else:
            text += (
                " and could not be used; `Checkpointer.explanation` and `deeppart verify` say why, and "
                "`deeppart verify --repair` may put it right. While it is there, no step of its number can be saved"
            )
        warn_caller(f"{text}; `deeppart prune --after` (with --local) removes such steps", DeeppartWarning)
    complete = max((each.attempt.step for each in survey(inventory).candidates), default=attempt.step)
    if complete > max([attempt.step, *newer]) and not named:
        warn_caller(
            f"restored step {attempt.step}, but the nodes have all parts of step {complete}, and some of these could "
            "not be read; `Checkpointer.explanation` says which and why",
            DeeppartWarning,
        )
    unusable = [f"{number} ({why})" for number, why in inventory.unusable if number > attempt.step]
    if unusable and not named:
        warn_caller(
            f"restored step {attempt.step}; newer steps in the directory cannot be used as they are: step "
            f"{', step '.join(unusable)}. A later restore that can use one goes on from there",
            DeeppartWarning,
        )


def still_busy(timeout: float) -> CheckpointError:
    """The error if an earlier checkpoint is still being written: which steps there are is not settled yet."""
    return CheckpointError(
        "restore: an earlier checkpoint is still being written",
        found="; ".join([f"not finished after {timeout:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before restoring",
    )


def say_nothing_restored(session: Session, problems: Sequence[str]) -> None:
    """Print that there was no checkpoint to restore."""
    if session.comm.rank == 0:
        passed_over = f"; passed over: {'; '.join(problems)}" if problems else ""
        say(f"no checkpoint in {session.directory.absolute()}: starting new{passed_over}")


def nothing_to_restore(session: Session, problems: Sequence[str]) -> RestoreError:
    """The error of ``restore(required=True)``."""
    root, rank = session.directory.absolute(), session.comm.rank
    error = RestoreError(
        "there is no checkpoint to restore",
        expected="one, since required=True",
        found="; ".join(problems) or "no step directory",
        where=str(root),
        todo=None if rank else meant_todo(root, "check persistent_dir; a new run restores without required=True"),
    )
    return on_ranks(error, rank)


def say_restored(session: Session, recovered: Recovered, seconds: float) -> None:
    """Print which step training continues from, and the sources of its parts."""
    if session.comm.rank == 0:
        root, sources = session.directory.absolute(), explain_sources(recovered.reads)
        say(f"restored step {recovered.attempt.step} from {root}: {sources}, {show_seconds(seconds)}")
