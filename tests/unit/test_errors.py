"""Errors and warnings: what they say, when, and for whose line."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
from torch.utils._pytree import tree_map

from deeppart import errors
from deeppart.errors import (
    CheckpointError,
    CommError,
    ConfigError,
    DeeppartError,
    DeeppartWarning,
    KeepNotice,
    ScrubNotice,
    StorageError,
    as_error,
    warn_caller,
    warn_now,
    warns_at_the_end,
)


def test_a_message_has_each_answer_on_a_line_of_its_own_and_no_empty_ones() -> None:
    error = ConfigError("impossible value", expected="a number", found="", where="deeppart.toml")
    assert str(error).splitlines() == ["impossible value", "  expected: a number", "  where: deeppart.toml"]


def test_every_error_and_warning_can_be_caught_as_one_of_the_librarys() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    raised = [kind for kind in kinds if issubclass(kind, BaseException)]
    assert len(raised) > 30
    for kind in raised:
        assert issubclass(kind, DeeppartWarning if issubclass(kind, Warning) else DeeppartError), kind


def test_a_storage_error_keeps_the_number_of_the_system() -> None:
    assert StorageError("cannot write", errno=28).errno == 28 and StorageError("cannot write").errno is None


def test_an_error_of_another_kind_becomes_what_was_found() -> None:
    mine = CommError("lost")
    assert as_error(mine, "cannot copy") is mine
    other = as_error(ZeroDivisionError("by 0"), "cannot copy")
    assert type(other) is CheckpointError and other.summary == "cannot copy"
    assert other.found == "ZeroDivisionError: by 0"


@warns_at_the_end
def outer(fail: bool = False) -> str:
    warn_caller("first", KeepNotice)
    inner()
    if fail:
        raise CommError("a rank is gone")
    return "result"


@warns_at_the_end
def inner() -> None:
    warn_caller("second", ScrubNotice)


def test_what_a_call_warns_of_is_said_when_it_is_over() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert outer() == "result"
    assert [(str(each.message), each.category) for each in caught] == [("first", KeepNotice), ("second", ScrubNotice)]


def test_a_warning_that_is_an_error_does_not_break_a_call_off() -> None:
    """The whole call is made, and what it warned of first is raised after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeepNotice, match="first"):
            outer()
        with pytest.raises(CommError):  # which says more
            outer(fail=True)
    with warnings.catch_warnings(record=True) as caught:  # nothing is left of the calls before
        warnings.simplefilter("always")
        inner()
    assert [str(each.message) for each in caught] == ["second"]


def test_what_is_said_at_once_is_printed_where_it_would_be_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_now("still waiting", DeeppartWarning)
    assert capsys.readouterr().err == "DeeppartWarning: still waiting\n"


def test_the_place_of_a_warning_is_the_line_that_called_the_library() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_caller("here", DeeppartWarning)
    assert caught[0].filename == __file__


def test_a_warning_has_the_line_that_called_torch_where_torch_called_the_library() -> None:
    """``dcp.save`` with this library's writer: a line inside of torch would tell the user nothing."""
    with pytest.warns(DeeppartWarning, match="here") as caught:
        tree_map(partial(warn_caller, category=DeeppartWarning), ["here"])
    assert [warning.filename for warning in caught] == [__file__]
