"""The errors of what is not used: an operating system's kind, the path, and what can be done."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deeppart.access import ForeignAccessError, NotRegularError, answers
from deeppart.access.refusals import refuse
from deeppart.access.rules import Complaint

COMPLAINT = Complaint("a directory of this user", "owned by uid 61234", "take another one")


def is_refused(complaint: Complaint | None) -> bool:
    try:
        refuse("/scratch", complaint)
    except ForeignAccessError:
        return True
    return False


def test_nothing_against_it_is_no_refusal() -> None:
    assert is_refused(COMPLAINT) and not is_refused(None)


def test_a_complaint_is_a_refusal_of_that_path() -> None:
    with pytest.raises(ForeignAccessError) as caught:
        refuse("/scratch/step", COMPLAINT)
    error = caught.value
    assert isinstance(error, PermissionError), "whoever handles what the system refuses handles this"
    assert (error.errno, error.filename, error.complaint) == (errno.EPERM, "/scratch/step", COMPLAINT)
    assert str(error) == "[Errno 1] not used: owned by uid 61234: '/scratch/step'"


def test_what_is_no_file_is_no_question_of_rights() -> None:
    error = NotRegularError(Path("/scratch/part"))
    assert isinstance(error, OSError) and not isinstance(error, PermissionError)
    assert (error.errno, error.filename) == (errno.EINVAL, "/scratch/part")
    assert "a symbolic link, a directory or a device" in str(error)


def test_an_error_message_gets_the_complaint() -> None:
    assert answers(ForeignAccessError(Path("/scratch/step"), COMPLAINT)) == {
        "expected": "a directory of this user",
        "found": "owned by uid 61234",
        "where": "/scratch/step",
        "todo": "take another one",
    }
    told = answers(NotRegularError(Path("/scratch/part")))
    assert told["expected"] == "a regular file" and told["where"] == "/scratch/part"
    assert told["found"].startswith("not a regular file") and "remove it" in told["todo"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "failed"), PermissionError(errno.EPERM, "no"), OSError()])
def test_what_the_system_refuses_by_itself_says_no_more(error: OSError) -> None:
    assert answers(error) == {}
