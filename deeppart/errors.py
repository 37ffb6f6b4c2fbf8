"""Every error and warning deeppart raises, in one place.

Invariants
----------
* Everything raised on purpose derives from :class:`DeeppartError`, so ``except deeppart.DeeppartError`` is enough.
  ``deeppart`` has the few that are caught by name; all of them are here.
* A message answers five questions, in this order and as far as they apply: what was expected, what was found, where
  (step, level, rank, path), what was tried, and what the reader can do next. The answers are also attributes.

This module knows nothing of the rest of the package.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

__all__ = [
    "BackgroundFailureWarning",
    "CheckpointError",
    "CommError",
    "ConfigError",
    "CorruptFileError",
    "DeeppartError",
    "DeeppartWarning",
    "DirectoryInUseError",
    "FormatError",
    "FreedMemoryError",
    "KeepNotice",
    "LaunchError",
    "LazyCaptureNotice",
    "LeafMismatchError",
    "LevelNotRunError",
    "MissingError",
    "NewerFormatError",
    "PeerTimeoutError",
    "PerRankError",
    "PerRankNotice",
    "RanksDisagreeError",
    "ReducedProtectionWarning",
    "RemoteRankError",
    "ReplicaDivergenceWarning",
    "RestoreError",
    "ScrubNotice",
    "SignatureError",
    "StateError",
    "StepExistsError",
    "StorageError",
    "StructureMismatchError",
    "SuspectStepWarning",
    "UnsupportedLeafError",
    "WaitingNotice",
]

E = TypeVar("E", bound="DeeppartError")
#: Packages of the frames between a warning and the caller's line; decorators belong to contextlib.
_INSIDE = frozenset({__package__, "torch", "contextlib"})
#: Packages of the frames around a script.
_AROUND = frozenset({*_INSIDE, "runpy", "mpi4py"})


#: Types that may contain one object many times: the repr of some hundred bytes of a pickle may be endless.
_NESTED = (list, dict, tuple, set, frozenset)


class DeeppartError(Exception):
    """Base of all deeppart errors. Their text is the summary and those of the five answers that are not None.

    Attributes:
        summary: one sentence saying what went wrong.
        expected: what would have been right. All five are a text or None.
        found: what was there instead.
        where: step, level, rank or path.
        tried: what was done about it.
        todo: what the reader can do next.
        shown_by: (this rank, the rank that prints the text) where several ranks raise the error; None: this one prints.

    Example:
        >>> import deeppart
        >>> try:
        ...     deeppart.Config(timeout=-1)
        ... except deeppart.DeeppartError as error:
        ...     print(error)  # and error.expected, error.found, error.where... by themselves
        impossible value for timeout
          expected: a finite number above 0
          found: -1
    """

    shown_by: tuple[int, int] | None = None

    def __init__(
        self,
        summary: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        where: str | None = None,
        tried: str | None = None,
        todo: str | None = None,
    ) -> None:
        self.summary = summary
        self.expected = expected
        self.found = found
        self.where = where
        self.tried = tried
        self.todo = todo
        super().__init__(summary)

    def __str__(self) -> str:
        answers = (
            ("expected", self.expected),
            ("found", self.found),
            ("where", self.where),
            ("tried", self.tried),
            ("to do", self.todo),
        )
        return "\n".join([self.summary, *(f"  {name}: {text}" for name, text in answers if text)])


class ConfigError(DeeppartError):
    """A configuration key is unknown, or its value is impossible."""


class LaunchError(DeeppartError):
    """The launcher started several processes, but the communicator does not connect them; or ranks cannot be started,
    on the nodes of the job (`deeppart run`).
    """


# --- the state handed in by the user ---------------------------------------------------------------------------------


class StateError(DeeppartError):
    """Something about the state to save or to restore into."""


class UnsupportedLeafError(StateError):
    """A value in the state cannot be stored; the message names its path and type."""


class FreedMemoryError(UnsupportedLeafError):
    """The memory of a tensor or array was freed, or is smaller than its shape; the message names its path."""


class StructureMismatchError(StateError):
    """The state's structure differs between ranks, or between the checkpoint and the live state."""


class LeafMismatchError(StateError):
    """One leaf's shape, dtype or kind differs between the checkpoint and the live state."""


class PerRankError(StateError):
    """The world size has changed, and the caller has not said what to do with per-rank leaves."""


# --- the other ranks --------------------------------------------------------------------------------------------------


class CommError(DeeppartError):
    """Communication with the other ranks failed."""


class RanksDisagreeError(CommError):
    """Ranks made different calls, or the same call with different arguments."""


class PeerTimeoutError(CommError):
    """Other ranks were waited for until the configured timeout; the message names them and the step."""


class RemoteRankError(CommError):
    """Another rank refused a collective call; the message carries its reason."""


# --- storage ----------------------------------------------------------------------------------------------------------


class StorageError(DeeppartError):
    """The operating system refused a storage operation.

    Attributes:
        errno: the number of the system's error, or None.

    Example:
        >>> import deeppart, errno, pathlib
        >>> _ = pathlib.Path("file").write_text("no directory")
        >>> try:
        ...     deeppart.Checkpointer(persistent_dir="file/ckpt")
        ... except deeppart.errors.StorageError as error:
        ...     print(errno.errorcode[error.errno], error.where)
        ENOTDIR ...file/ckpt
    """

    def __init__(self, summary: str, *, errno: int | None = None, **answers: str | None) -> None:
        super().__init__(summary, **answers)
        self.errno = errno


class MissingError(StorageError):
    """A file or directory does not exist."""


def lacks_space(error: StorageError) -> bool:
    """True if there is no space left, or no more of it for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def one_line(error: DeeppartError) -> str:
    """An error's location, summary and finding, for a list."""
    return ": ".join(text for text in (error.where, error.summary, error.found) if text)


def lacks_resources(error: BaseException) -> bool:
    """True if an error says nothing about a file: this process has no descriptors, memory or threads left."""
    if isinstance(error, StorageError):
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "new thread" in str(error))


class DirectoryInUseError(StorageError):
    """Another running job owns the checkpoint directory."""


class FormatError(DeeppartError):
    """A file is not what the format documents (docs/format.md)."""


class CorruptFileError(FormatError):
    """A file is truncated, or a digest, bound or count in it does not hold."""


class SignatureError(CorruptFileError):
    """A key was given, and a file is not signed, or not with that key, or was changed after it was."""


class NewerFormatError(FormatError):
    """A file was written by a newer version of the format than this library reads."""


#: Raised if a small record cannot be read, or its JSON lacks the expected values. Callers that can do without it catch
#: these.
UNUSABLE = (StorageError, FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


# --- checkpoints ------------------------------------------------------------------------------------------------------


class CheckpointError(DeeppartError):
    """A checkpoint could not be made durable at a level."""


class LevelNotRunError(CheckpointError):
    """A level was waited for that this checkpoint does not go to (see ``every`` and ``on_busy``)."""


class StepExistsError(CheckpointError):
    """``checkpoint(step=...)`` names a step that is already committed."""


class RestoreError(DeeppartError):
    """No step, or not the step asked for, can be recovered; the message lists each reason."""


# --- warnings ---------------------------------------------------------------------------------------------------------


class DeeppartWarning(UserWarning):
    """Base of all deeppart warnings.

    Where they are errors, ``checkpoint()`` raises them before it changes anything, also those of earlier calls, and may
    be called again with the same step; ``close()`` raises what is left when it is over.

    Example:
        >>> import deeppart, warnings
        >>> warnings.simplefilter("error", deeppart.DeeppartWarning)  # each becomes an exception,
        >>> warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)  # but for those of this kind
        >>> warnings.warn("these leaves differ between ranks", deeppart.errors.PerRankNotice)
    """


class PerRankNotice(DeeppartWarning):
    """Leaves differ between ranks and are saved per rank from now on; or were, and are not restored on other ranks."""


class LazyCaptureNotice(DeeppartWarning):
    """``capture="lazy"`` cannot know when some tensors change, and copies them before ``checkpoint()`` returns."""


class ReplicaDivergenceWarning(DeeppartWarning):
    """Leaves that all ranks held alike until now differ: a bug in training, or silent data corruption; or buffers that
    were filled from each rank's own data for the first time.
    """


class SuspectStepWarning(DeeppartWarning):
    """A checkpoint that is read is suspect: ranks may have held other bytes of leaves than those that were saved for
    all, as was found out later.
    """


class ScrubNotice(DeeppartWarning):
    """Files on nodes were found damaged or missing when they were read again, and have been repaired, or not."""


class KeepNotice(DeeppartWarning):
    """A committed step of an earlier run cannot be restored from its directory, and does not count for ``keep``."""


class ReducedProtectionWarning(DeeppartWarning):
    """The job has too few nodes for the partner and parity levels asked for, and goes on with what these can give."""


class BackgroundFailureWarning(DeeppartWarning):
    """An earlier checkpoint failed in the background; training goes on and the last good checkpoint stays."""


class WaitingNotice(DeeppartWarning):
    """A call waits for other ranks, and has done so for a while; it goes on waiting."""


class _Call(threading.local):
    """The call of the library that a thread is in; see :func:`raised_later`."""

    later: Callable[[str, type[DeeppartWarning]], None] | None = None


_call = _Call()


@contextlib.contextmanager
def raised_later(note: Callable[[str, type[DeeppartWarning]], None]) -> Iterator[None]:
    """In this block no warning is raised where warnings are errors (``python -W error``): ``note`` gets it instead.

    One that is raised by a call which other ranks take part in, or which has changed something, would break it off on
    this rank alone, or lose what it returns.
    """
    before, _call.later = _call.later, note
    try:
        yield
    finally:
        _call.later = before


def as_error(error: BaseException, summary: str) -> DeeppartError:
    """An error as one of the library's: any other is what was ``found``."""
    if isinstance(error, DeeppartError):
        return error
    return CheckpointError(summary, found=f"{type(error).__name__}: {error}")


def short(value: object) -> str:
    """Describe what was found in a file in at most 120 characters; it may be anything, and as long as the file."""
    if isinstance(value, _NESTED) and (type(value) is not tuple or any(isinstance(each, _NESTED) for each in value)):
        return f"a {type(value).__name__} of {len(value)}"  # not its repr: it may be nested deeper than repr can go
    text = repr(value[:120] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 120 else text[:117] + "..."


def on_ranks(error: E, rank: int, first: int = 0) -> E:
    """An error that several ranks raise: where nobody catches it, the first of them prints it, the others one line."""
    if rank != first:
        error.shown_by = rank, first
    return error


def cut_traceback(error: BaseException) -> None:
    """Leave of an error's traceback the script's own frames, up to the call of the library; and begin that of the error
    behind it at what it called.
    """
    frames = _frames(error)
    ours = [place for place, each in enumerate(frames) if _is_ours(each)]
    error.__traceback__ = _linked([each for each in frames[: ours[0] if ours else None] if not _is_around(each)])
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is None:
        return
    frames = _frames(behind)
    called = frames[max((place + 1 for place, each in enumerate(frames) if _is_ours(each)), default=0) :]
    behind.__traceback__ = _linked(called)
    if not called:  # of the library alone: the text of the error says it
        error.__cause__ = None


def _frames(error: BaseException) -> list[TracebackType]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == __package__


def _is_around(trace: TracebackType) -> bool:
    names = [str(trace.tb_frame.f_globals.get(name)) for name in ("__name__", "__package__")]
    return not _AROUND.isdisjoint(name.partition(".")[0] for name in names)


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    linked: TracebackType | None = None
    for each in reversed(frames):
        linked = TracebackType(linked, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return linked


def say(text: str) -> None:
    """Print a line that everybody should see, and that is no warning; at once, since other ranks print there, too."""
    sys.stderr.write(f"deeppart: {text}\n")


def warn_now(text: str, category: type[DeeppartWarning]) -> None:
    """Warn as :func:`warn_caller`; where that is an error, print it: nobody could do anything about it later."""
    with raised_later(lambda text, category: print(f"{category.__name__}: {text}", file=sys.stderr)):  # noqa: T201
        warn_caller(text, category)


def warn_of_all(notes: Iterable[tuple[str, type[DeeppartWarning]]]) -> None:
    """Warn of each as :func:`warn_caller`; where these are errors, the first is raised, and tells of the others."""
    raised: DeeppartWarning | None = None
    for text, category in notes:
        try:
            warn_caller(text, category)
        except category as error:
            if raised is not None:
                raised.add_note(f"{category.__name__}: {text}")
            raised = raised or error
    if raised is not None:
        raise raised


def warn_caller(text: str, category: type[DeeppartWarning]) -> None:
    """Warn, with the line that called the library as the place, however deep inside this is noticed.

    Where torch has called the library (``dcp.save``, a hook), it is the line that called torch.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(text, category, stacklevel=level)
    except category:
        if _call.later is None:
            raise
        _call.later(text, category)
