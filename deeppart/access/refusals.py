"""The errors of what is not used because others could decide what is in it, or because it is no regular file."""

from __future__ import annotations

import errno
from pathlib import Path

from deeppart.access.room import advice
from deeppart.access.rules import Complaint


class ForeignAccessError(PermissionError):
    """Others own something, or can write to it, and so could decide what is read or written.

    Attributes:
        complaint: the reason, and what can be done.
    """

    def __init__(self, path: Path, complaint: Complaint) -> None:
        super().__init__(errno.EPERM, f"not used: {complaint.found}", str(path))
        self.complaint = complaint


class NotRegularError(OSError):
    """A symbolic link, a directory, a device, a FIFO or a socket in the place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file (a symbolic link, a directory or a device)", str(path))


def answers(error: OSError) -> dict[str, str]:
    """The further fields of an error message, beyond the text of the operating system; {} if there are none."""
    if isinstance(error, NotRegularError):
        todo = "find out who has put it there, and remove it"
        return {"expected": "a regular file", "found": str(error.strerror), "where": str(error.filename), "todo": todo}
    if not isinstance(error, ForeignAccessError):
        return advice(error)
    complaint = error.complaint
    where = str(error.filename)
    return {"expected": complaint.expected, "found": complaint.found, "where": where, "todo": complaint.todo}


def refuse(path: str, complaint: Complaint | None) -> None:
    """Raise ForeignAccessError if the rules have something against a path."""
    if complaint is not None:
        raise ForeignAccessError(Path(path), complaint)
