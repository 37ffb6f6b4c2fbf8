"""One restore of a session: what there is, read and brought into the live state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deeppart.comm.agreement import raise_together
from deeppart.errors import DeeppartWarning
from deeppart.model.reports import RestoreReport
from deeppart.nodes.exchange.memory import Arena
from deeppart.plan.restart import Inventory, survey
from deeppart.recovery.apply import restore_state
from deeppart.recovery.live import refusal_of_state
from deeppart.recovery.narrow_reading import NarrowReading
from deeppart.recovery.narrowing import look_at_live
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.recover import Recovered, recover
from deeppart.session.looking import Looked
from deeppart.session.record import Session
from deeppart.session.restore_warnings import nothing_to_restore, say_nothing_restored
from deeppart.session.stock import take_stock
from deeppart.state.capture.staging import Staging
from deeppart.state.restore.request import Asked
from deeppart.state.tree.globs import Excluded, Ways
from deeppart.state.tree.paths import Path


@dataclass(frozen=True, slots=True)
class Restored:
    """A step that is in the live state.

    Attributes:
        recovered: the step, and from where its parts came.
        inventory: what there was to choose from.
        report: what was done on this rank.
        notices: what rank 0 is to tell the user.
        per_rank: paths of the leaves that each rank saved for itself.
    """

    recovered: Recovered
    inventory: Inventory
    report: RestoreReport
    notices: list[DeeppartWarning]
    per_rank: list[str]


def restore_step(
    session: Session,
    state: Any,
    which: int | Looked | None,
    ways: Ways,
    asked: Asked,
    memory: tuple[Staging, Arena],
    *,
    required: bool = False,
) -> tuple[Restored | None, tuple[str, ...]]:
    """Bring a step back (collective)."""
    comm, timeout = session.comm, session.config.timeout
    known = which.saved if isinstance(which, Looked) else None
    step = which.saved.attempt.step if isinstance(which, Looked) else which
    inventory = which.inventory if isinstance(which, Looked) else take_stock(session, timeout)
    is_filled = known is not None or bool(survey(inventory, step).candidates)
    live = look_at_live(state, asked, comm, timeout, is_filled=is_filled)
    narrow = NarrowReading(live.flat.root, asked.request, live.outermost, alike=live.alike)
    ranks = Ranks(comm, session.topology.node_of, timeout, session.processors.waiting)
    what = inventory, step, *memory, timeout, session.persistent.signing, session.processors.waiting
    explanation: tuple[str, ...] = ()
    done: tuple[RestoreReport, list[DeeppartWarning], list[str]] | None = None

    def use(recovered: Recovered) -> None:
        nonlocal done
        done = restore_state(ranks, recovered, live, ways, session.config.replicated, known)

    for narrower in (narrow if narrow.may_choose else None, None):
        recovered, told = recover(comm, *what, narrower, use)
        explanation += told
        if recovered is None:
            refusal = nothing_to_restore(session, explanation) if required else None
            raise_together(comm, refusal or refusal_of_state(live.flat, _left_out(asked)), "restore", timeout)
            say_nothing_restored(session, explanation)
            return None, explanation
        if done is not None:
            return Restored(recovered, inventory, *done), explanation
        recovered.mine.clear()  # before its memory is used for the same once more
        explanation += (f"step {recovered.attempt.step}: ranks name things differently; it is read whole",)
    raise AssertionError("a step that was read whole lacks nothing")


def _left_out(asked: Asked) -> Callable[[Path], bool] | None:
    """True for paths of what the configuration leaves out of checkpoints; None where it leaves out nothing."""
    excluded = Excluded(asked.request.settings)
    if not excluded.patterns:
        return None
    return lambda path: any(excluded.covers(path[:end]) for end in range(1, len(path) + 1))
