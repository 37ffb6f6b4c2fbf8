"""Rank 0's notices after a restore, and at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence

from deeppart.access.hanging import hanging
from deeppart.comm import finish
from deeppart.errors import CheckpointError, DeeppartWarning, RestoreError, on_ranks, say, warn_caller
from deeppart.model import Attempt
from deeppart.model.units import show_seconds
from deeppart.plan.restart import Inventory, explain_sources
from deeppart.recovery.recover import Recovered
from deeppart.recovery.suspect_warnings import suspect_lines, warn_suspect
from deeppart.session.record import Session
from deeppart.storage.mistaken_paths import meant_todo


def tell_suspects(session: Session, attempt: Attempt) -> tuple[str, ...]:
    """Say whether a restored step is suspect (collective); the lines about it, on every rank."""
    comm, first = session.comm, session.comm.rank == 0
    lines = suspect_lines(session.persistent.root, attempt) if first else []
    message = json.dumps(lines).encode() if first else None
    what = "restore, looking for records of suspect steps"
    lines = json.loads(finish(comm, comm.broadcast(message), what, session.config.timeout))
    if first:
        warn_suspect(attempt.step, lines)
    return tuple(lines)


def tell_restored(
    session: Session, attempt: Attempt, inventory: Inventory, notices: Sequence[DeeppartWarning], *, named: bool
) -> None:
    """Warn of what did not get where it was perhaps meant to be, and of newer steps than the restored one."""
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
    unusable = [f"{number} ({why})" for number, why in inventory.unusable if number > attempt.step]
    if unusable and not named:
        warn_caller(
            f"restored step {attempt.step}; newer steps in the directory cannot be used as they are: step "
            f"{', step '.join(unusable)}. A later restore that can use one goes on from there",
            DeeppartWarning,
        )


def still_busy(timeout: float) -> CheckpointError:
    """A restore reads into the staging memory: nothing of an earlier checkpoint may be left in it."""
    return CheckpointError(
        "restore: an earlier checkpoint is still being written",
        found="; ".join([f"not finished after {timeout:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before restoring",
    )


def say_nothing_restored(session: Session, problems: Sequence[str]) -> None:
    """There was nothing to restore, or only what is not a checkpoint."""
    if session.comm.rank == 0:
        passed_over = f"; passed over: {'; '.join(problems)}" if problems else ""
        say(f"no checkpoint in {session.persistent.root.absolute()}: starting new{passed_over}")


def nothing_to_restore(session: Session, problems: Sequence[str]) -> RestoreError:
    """The error of ``restore(required=True)``."""
    root, rank = session.persistent.root.absolute(), session.comm.rank
    error = RestoreError(
        "there is no checkpoint to restore",
        expected="one, since required=True",
        found="; ".join(problems) or "no step directory",
        where=str(root),
        todo=None if rank else meant_todo(root, "check persistent_dir; a new run restores without required=True"),
    )
    return on_ranks(error, rank)


def say_restored(session: Session, recovered: Recovered, seconds: float) -> None:
    """Which step training goes on from, and where its parts came from."""
    if session.comm.rank == 0:
        root, sources = session.persistent.root.absolute(), explain_sources(recovered.reads)
        say(f"restored step {recovered.attempt.step} from {root}: {sources}, {show_seconds(seconds)}")


def warn_unsaved(session: Session, step: int | None) -> None:
    """``every="auto"`` had no checkpoint due at the last steps."""
    if step is not None and session.comm.rank == 0:
        warn_caller(
            f"closed after step {step}, which is not saved: every='auto' had no checkpoint due there. "
            "checkpoint(state, step, force=True) saves the last state",
            DeeppartWarning,
        )
