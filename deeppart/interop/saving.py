"""Shared by the trainer adapters: version checks, checkpoint cadence, restores and SIGTERM."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, NoReturn

from deeppart import Checkpointer, Config, Pending, pause_watch
from deeppart.config import check_count
from deeppart.errors import ConfigError, DeeppartError, as_error
from deeppart.extension import StopRequest
from deeppart.progress import STOPPED, is_watched
from deeppart.types import PerRank

#: Policies for rank-local leaves on another world size, as of trainers whose own checkpoints hold rank 0's state.
DEFAULT_PER_RANK: PerRank = {"rng/*": "drop", "data": "strict", "*": "rank0"}


class _TrainerImportError(ConfigError, ImportError):
    """An adapter was imported without its training library."""


def require(package: str, oldest: str, purpose: str) -> None:
    """Check that a package is installed and recent enough.

    Args:
        package: name on PyPI.
        oldest: oldest supported version: ``"0.3"``.
        purpose: the module that needs it, for the message.

    Raises:
        ConfigError: it is missing or too old. The error is an ImportError, too.

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
    """The release numbers of a version, without trailing zeros: (0, 3) for "0.3.0rc1+cpu"."""
    matched = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(number) for number in matched[1].split(".")] if matched else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def refuse(what: str, found: Iterable[tuple[Any, str]], expected: str, todo: str) -> None:
    """Raise ConfigError if any condition holds; ``found`` has conditions and their names."""
    if refused := [name for present, name in found if present]:
        raise ConfigError(what, expected=expected, found=", ".join(refused), todo=todo)


class Saving:
    """Checkpoints of one training run, for any training library."""

    def __init__(
        self, checkpointer: Checkpointer | Config | None = None, every: int = 1, *, sigterm: bool = False
    ) -> None:
        check_count("every", every, "steps")
        self._borrowed = checkpointer if isinstance(checkpointer, Checkpointer) else None
        self._config = checkpointer if isinstance(checkpointer, Config) else None
        self._owned: Checkpointer | None = None
        self._every = every
        self._sigterm = sigterm
        self._stop_request: StopRequest | None = None
        self._due = False
        #: The last step that was restored, or saved to the persistent level; it need not be saved again at the end.
        self._saved_step: int | None = None
        self.stopped = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer in use; opened at the first access (collective)."""
        if self._borrowed is not None:
            return self._borrowed
        if self._owned is None:
            self._owned = Checkpointer(self._config)
        return self._owned

    def restore(
        self,
        state: Any,
        step: int | None = None,
        per_rank: PerRank | None = None,
        *,
        overrides: PerRank | None = None,
        defaults: PerRank = DEFAULT_PER_RANK,
        **options: Any,
    ) -> int | None:
        """Restore a state in place (collective); returns the step, or None.

        Policies for rank-local leaves: ``overrides`` go before the caller's ``per_rank``, ``defaults`` come last.
        """
        policies: dict[str, Any] = {}
        for table in (defaults, per_rank, overrides):  # the first matching glob of the merged table decides
            if table is not None:
                added = table if isinstance(table, Mapping) else {"*": table}
                policies = {**added, **{glob: policy for glob, policy in policies.items() if glob not in added}}
        self._saved_step = self.checkpointer.restore(state, step, per_rank=policies, **options)
        return self._saved_step

    def save(self, make: Callable[[], Any], step: int, *, force: bool = False) -> Pending:
        """Save a state (collective); if ``make`` fails on one rank, the call fails on all."""
        pending = self.checkpointer.checkpoint(state_or_error(make), step, force=force or self.stopped)
        if "persistent" in pending.levels:
            self._saved_step = step
        return pending

    # --- for callbacks, which are called at every step ---

    def begin(self) -> None:
        """Training begins (collective)."""
        self.stopped = self._due = False
        if self._sigterm and self._stop_request is None:
            # Only the main thread can handle signals. Handlers of trainers, which exit at once, are not chained.
            is_main = threading.current_thread() is threading.main_thread()
            self._stop_request = StopRequest([signal.SIGTERM] if is_main else [], chained=False)
        if self._stop_request is not None:
            self._stop_request.listen()

    def stepped(self, step: int) -> None:
        """Record that a step was done (collective): is a checkpoint due, was SIGTERM received?"""
        if self._stop_request is not None and not self.stopped and self._stop_request.agree():
            self.stopped = self._due = True
        elif step % self._every == 0:
            self._due = True

    def is_alive(self) -> None:
        """Report to the agent of ``deeppart run`` that this rank does something, although it makes no step."""
        with pause_watch():
            pass

    def save_if_due(self, make: Callable[[], Any], step: int) -> None:
        """Save if due; after SIGTERM to all levels (collective)."""
        if self._due:
            self._due = False
            self.save(make, step)

    def finish(self, make: Callable[[], Any], step: int) -> None:
        """Save the last step to all levels, and close (collective); under ``deeppart run``, end if stopped."""
        if self._saved_step != step:
            self.save(make, step, force=True)
        checkpointer = self.checkpointer
        self.close()
        if self.stopped and is_watched():  # with another exit code the training would be over
            checkpointer.close()
            sys.exit(STOPPED)

    def close(self, error: BaseException | None = None) -> None:
        """Finish background work, if this object opened the Checkpointer (collective).

        After an error it does not wait for other ranks, which may never arrive.
        """
        if self._stop_request is not None:
            self._stop_request.end()
        if self._owned is not None:
            closing, self._owned = self._owned, None
            closing.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))


class _FailedState:
    """A state whose ``state_dict()`` raises, which makes ``checkpoint()`` fail on all ranks."""

    def __init__(self, error: DeeppartError) -> None:
        self._error = error

    def state_dict(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    load_state_dict = state_dict


def state_or_error(make: Callable[[], Any]) -> Any:
    """The state; if ``make`` fails, a state that makes ``checkpoint()`` fail on all ranks."""
    try:
        return make()
    except Exception as error:  # the other ranks wait in checkpoint()
        reported = as_error(error, "flattening the state failed")
        if reported is not error:
            reported.__cause__ = error
        return _FailedState(reported)
