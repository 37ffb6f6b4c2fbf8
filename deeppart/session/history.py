"""The steps of a job: those found at start-up, restored and saved since; and what is told of their order."""

from __future__ import annotations

from collections.abc import Sequence

from deeppart.errors import DeeppartError, DeeppartWarning, StepExistsError, warn_caller
from deeppart.pending import DONE, Pending
from deeppart.session.record import Session


class StepRows:
    """A set of steps that stays small in a job that saves at regular steps for months: rows of equal distance."""

    def __init__(self) -> None:
        self._rows: list[range] = []
        self._largest = -1

    def add(self, step: int) -> None:
        """The step is in the set from now on."""
        if step in self:
            return
        last = self._rows[-1] if self._rows else range(0)
        if len(last) == 1 and step > last.start:
            self._rows[-1] = range(last.start, step + 1, step - last.start)
        elif len(last) > 1 and step == last[-1] + last.step:
            self._rows[-1] = range(last.start, step + 1, last.step)
        else:
            self._rows.append(range(step, step + 1))
        self._largest = max(self._largest, step)

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and step <= self._largest and any(step in row for row in self._rows)

    def __len__(self) -> int:
        return sum(map(len, self._rows))


class StepHistory:
    """The steps that are taken, and the last one. Used by the training thread alone."""

    def __init__(self, session: Session, recent: list[Pending]) -> None:
        self._root, self._rank = session.persistent.root, session.comm.rank
        self._recent = recent
        self._found_newest = max((key.step for key in session.committed), default=-1)
        self._known = {key.step for key in session.committed}
        self._saved = StepRows()
        self._largest = -1  # restored, or saved since
        self._restored = False
        self._told_not_restored = self._told_counting_down = False

    def went_on_from(self, step: int | None) -> None:
        """A restore has succeeded: of a step, or of none since there is none."""
        self._restored = True
        if step is not None:
            self._known.add(step)
            self._largest = step

    def settle(self, finished: Sequence[Pending]) -> None:
        """Forget checkpoints that are finished and reported; the steps of those that are complete are taken."""
        self._recent[:] = [pending for pending in self._recent if pending not in finished]
        counted = [pending.step for pending in finished if _counts(pending)]
        for step in counted:
            self._saved.add(step)
        self._largest = max([self._largest, *counted])

    def last(self) -> int:
        """The largest step that was restored, or saved since; -1 if there is none."""
        return max([self._largest, *(pending.step for pending in self._recent if _counts(pending))])

    def following(self) -> int:
        """The first step after all that are taken, or may be."""
        return max(self.last(), self._found_newest, *self._known, -1) + 1

    def refusal_of(self, step: int) -> DeeppartError | None:
        """The reason why there cannot be a checkpoint of that step, or None."""
        active = [pending for pending in self._recent if pending.step == step]
        used = step in self._saved or any(_counts(pending) for pending in active)
        if used or step in self._known:
            return StepExistsError(
                f"step {step} was already saved in this run" if used else f"step {step} is already in the directory",
                expected="a step that has not been committed",
                where=f"step {step}, {self._root}",
                todo=("" if self._restored else "call restore(state) before the loop, and ")
                + f"continue with step {self.following()}; or give the job a directory of its own. To go back on "
                "purpose, end the job, remove newer steps with `deeppart prune --after` (and --local, for the copies "
                "on nodes), and start it again",
            )
        return None

    def warn_not_restored(self, step: int) -> None:
        """Training that starts over beside what an earlier run has left, once."""
        newest = self._found_newest
        if self._restored or self._told_not_restored or step >= newest:
            return
        self._told_not_restored = True
        if self._rank == 0:
            warn_caller(
                f"checkpoint(step={step}), but step {newest} of an earlier run is in the directory and nothing was "
                "restored: that step stays, and the next restore takes it. Call restore(state) before the loop; or "
                "give this run a directory of its own, or remove the old steps with `deeppart prune --after`",
                DeeppartWarning,
            )

    def warn_counting_down(self, step: int) -> None:
        """``restore`` and ``load`` take the largest step number, which is not the newest checkpoint then; once."""
        last = self.last()
        if step >= last or self._told_counting_down:
            return
        self._told_counting_down = True
        if self._rank == 0:
            warn_caller(
                f"checkpoint(step={step}) after step {last}: of the checkpoints in the directory, restore takes that "
                "with the largest step number, not the one that was made last. Count steps up",
                DeeppartWarning,
            )


def _counts(pending: Pending) -> bool:
    """True if a checkpoint is under way or complete at some level, so that its step is taken."""
    states = [level.state for level in pending.report.levels.values()]
    return not pending.finished or DONE in states
