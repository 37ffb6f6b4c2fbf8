"""What the adapters of trainers share: versions, refusals, when a checkpoint is due and what makes it, SIGTERM."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, NoReturn

from deeppart import Checkpointer, Config, Pending
from deeppart.config import check_count
from deeppart.errors import ConfigError, DeeppartError, as_error
from deeppart.extension import StopRequest
from deeppart.types import PerRank

#: What becomes of leaves of each rank on another number of ranks, where the trainer's own checkpoints are rank 0's.
OTHERS: PerRank = {"rng/*": "drop", "data": "strict", "*": "rank0"}


class _TrainerImportError(ConfigError, ImportError):
    """A module of this package that is imported without what it is for."""


def require(package: str, oldest: str, purpose: str) -> None:
    """Refuse a package that is missing or too old, before anything is done with it.

    Args:
        package: its name on PyPI.
        oldest: the first version that will do: ``"0.3"``.
        purpose: the module that needs it.

    Raises:
        ConfigError: it is not installed, or older. It is an ImportError, too, as of any module that cannot be imported.

    Example:
        >>> from deeppart.interop.saving import require
        >>> require("torch", "2.4", "this example")
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = ""
    if found and _numbers(found) >= _numbers(oldest):
        return
    raise _TrainerImportError(
        f"{purpose} needs {package}" if not found else f"{purpose} needs a newer {package}",
        expected=f"{package} {oldest} or newer",
        found=found or "none is installed",
        todo=f"pip install '{package}>={oldest}'",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (0, 3) of "0.3.0rc1+cpu". Pre-releases count as their release, zeros at the end not."""
    matched = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(number) for number in matched[1].split(".")] if matched else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def refuse(what: str, found: Iterable[tuple[Any, str]], expected: str, todo: str) -> None:
    """Refuse by name what would be saved wrongly or not at all: ``found`` has conditions and their names."""
    if refused := [name for present, name in found if present]:
        raise ConfigError(what, expected=expected, found=", ".join(refused), todo=todo)


class Saving:
    """Checkpoints of one training, whichever library runs its loop."""

    def __init__(
        self, checkpointer: Checkpointer | Config | None = None, every: int = 1, *, sigterm: bool = False
    ) -> None:
        check_count("every", every, "steps")
        self._given = checkpointer if isinstance(checkpointer, Checkpointer) else None
        self._config = checkpointer if isinstance(checkpointer, Config) else None
        self._own: Checkpointer | None = None
        self._every = every
        self._sigterm = sigterm
        self._request: StopRequest | None = None
        self._due = False
        #: The step that was restored, or is being saved at the persistent level: it need not be saved at the end.
        self._safe: int | None = None
        self.stopped = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The one in use; opened now if it has to be (collective)."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Checkpointer(self._config)
        return self._own

    def restore(
        self,
        state: Any,
        step: int | None = None,
        per_rank: PerRank | None = None,
        *,
        first: PerRank | None = None,
        others: PerRank = OTHERS,
        **how: Any,
    ) -> int | None:
        """Restore a state in place (collective); returns the step, or None.

        Of the policies for another number of ranks, the caller's ``per_rank`` comes after ``first``, before ``others``.
        """
        ways: dict[str, Any] = {}
        for table in (others, per_rank, first):  # in a table the first glob that matches decides
            if table is not None:
                mine = table if isinstance(table, Mapping) else {"*": table}
                ways = {**mine, **{glob: way for glob, way in ways.items() if glob not in mine}}
        self._safe = self.checkpointer.restore(state, step, per_rank=ways, **how)
        return self._safe

    def save(self, make: Callable[[], Any], step: int, *, force: bool = False) -> Pending:
        """Save a state (collective); where this rank cannot make it, all ranks hear why."""
        pending = self.checkpointer.checkpoint(or_refusal(make), step, force=force or self.stopped)
        if "persistent" in pending.levels:
            self._safe = step
        return pending

    # --- for callbacks, which are called at every step ---

    def begin(self) -> None:
        """Training begins (collective)."""
        self.stopped = self._due = False
        if self._sigterm and self._request is None:
            # Only the main thread can note signals. Trainers whose handlers end at once by SIGTERM are to wait.
            is_main = threading.current_thread() is threading.main_thread()
            self._request = StopRequest([signal.SIGTERM] if is_main else [], chained=False)
        if self._request is not None:
            self._request.listen()

    def stepped(self, step: int) -> None:
        """A step was made (collective): note whether a checkpoint is due, and whether SIGTERM was received."""
        if self._request is not None and not self.stopped and self._request.agree():
            self.stopped = self._due = True
        elif step % self._every == 0:
            self._due = True

    def save_if_due(self, make: Callable[[], Any], step: int) -> None:
        """Save what is due; after SIGTERM at all levels (collective)."""
        if self._due:
            self._due = False
            self.save(make, step)

    def finish(self, make: Callable[[], Any], step: int) -> None:
        """Training has ended: save its last step at all levels, and close (collective)."""
        if self._safe != step:
            self.save(make, step, force=True)
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Wait for what is in the background, if this object opened the Checkpointer (collective).

        After an error the other ranks may never come, so nothing waits for them.
        """
        if self._request is not None:
            self._request.end()
        if self._own is not None:
            closing, self._own = self._own, None
            closing.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))


class _Refused:
    """Stands for a state that cannot be made: raises when it is looked at, which ends the call on all ranks."""

    def __init__(self, error: DeeppartError) -> None:
        self._error = error

    def state_dict(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def load_state_dict(self, state: Any) -> NoReturn:
        """Raise the error."""
        raise self._error


def or_refusal(make: Callable[[], Any]) -> Any:
    """A state to be saved; or, where this rank cannot make it, one of which all ranks hear why."""
    try:
        return make()
    except Exception as error:  # of whatever the state is made of: the other ranks wait in checkpoint()
        refusal = as_error(error, "flattening the state failed")
        if refusal is not error:
            refusal.__cause__ = error
        return _Refused(refusal)
