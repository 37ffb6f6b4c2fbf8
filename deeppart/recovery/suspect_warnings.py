"""Warnings about suspect checkpoints that are restored or read."""

from __future__ import annotations

from collections.abc import Sequence

from deeppart.errors import SuspectStepWarning, warn_caller
from deeppart.model import Attempt
from deeppart.storage import Store, Suspicions

#: Leaves named in a warning; the record and ``deeppart show --json`` have all.
_MOST_NAMED = 8


def suspect_lines(store: Store, attempt: Attempt) -> list[str]:
    """The reasons why a checkpoint is, or may be, suspect."""
    found = Suspicions.read(store)
    problems = found.problems if attempt.world_size > 1 else ()  # one rank alone has no replicas
    return [
        *(f"step {attempt.step} is suspect: {leaf}" for leaf in found.of(attempt)),
        *(f"step {attempt.step} may be suspect: {problem}" for problem in problems),
    ]


def warn_suspect(step: int, lines: Sequence[str]) -> None:
    """Warn the caller of a suspect checkpoint, if there are any lines."""
    if lines:
        more = f"\n  and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
        listed = "\n  ".join(lines[:_MOST_NAMED])
        warn_caller(
            f"step {step}: ranks may not have held all replicated leaves alike when it was saved. Of those that are "
            f"named here, it has one rank's bytes, or a mixture, for all\n  {listed}{more}",
            SuspectStepWarning,
        )
