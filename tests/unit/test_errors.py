"""Errors and warnings: what they say, when, and for whose line."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.utils._pytree import tree_map

from deeppart import errors
from deeppart.errors import (
    ConfigError,
    DeeppartError,
    DeeppartWarning,
    KeepNotice,
    ScrubNotice,
    raised_later,
    warn_caller,
    warn_now,
    warn_of_all,
)

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_message_has_each_answer_on_a_line_of_its_own_and_no_empty_ones() -> None:
    error = ConfigError("impossible value", expected="a number", found="", where="deeppart.toml")
    assert str(error).splitlines() == ["impossible value", "  expected: a number", "  where: deeppart.toml"]


def test_every_error_and_warning_can_be_caught_as_one_of_the_librarys() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    raised = [kind for kind in kinds if issubclass(kind, BaseException)]
    assert len(raised) > 30
    for kind in raised:
        assert issubclass(kind, DeeppartWarning if issubclass(kind, Warning) else DeeppartError), kind


def test_a_warning_that_is_an_error_does_not_break_a_call_off() -> None:
    """It is noted, also from further inside, and outside it is raised again."""
    noted: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with raised_later(lambda *note: noted.append(note)):
            warn_caller("first", KeepNotice)
            warn_now("at once", DeeppartWarning)
            warn_caller("second", ScrubNotice)
        assert noted == [("first", KeepNotice), ("second", ScrubNotice)]
        with pytest.raises(KeepNotice, match="first") as raised:
            warn_of_all(noted)
        assert raised.value.__notes__ == ["ScrubNotice: second"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with raised_later(lambda *note: noted.append(note)):
            warn_of_all(noted)
    assert [(str(each.message), each.category) for each in caught] == noted and len(noted) == 2


def test_what_is_said_at_once_is_printed_where_it_would_be_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_now("still waiting", DeeppartWarning)
    assert capsys.readouterr().err == "DeeppartWarning: still waiting\n"


def test_a_warning_has_the_line_that_called_torch_where_torch_called_the_library() -> None:
    """``dcp.save`` with this library's writer: a line inside of torch would tell the user nothing."""
    with pytest.warns(DeeppartWarning, match="here") as caught:
        tree_map(partial(warn_caller, category=DeeppartWarning), ["here"])
    assert [warning.filename for warning in caught] == [__file__]


# --- errors that nobody catches ---------------------------------------------------------------------------------------


def uncaught(script: str, **variables: str) -> str:
    """What a script prints that ends by an error, in an interpreter of its own."""
    command, env = [sys.executable, "-c", script], os.environ | variables
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    return run.stderr


REFUSED = "import deeppart\ndef main():\n    deeppart.Config(timeout=-1)\nmain()"


def test_the_frames_of_the_library_are_not_printed() -> None:
    assert uncaught(REFUSED).splitlines() == [
        "Traceback (most recent call last):",
        '  File "<string>", line 4, in <module>',
        '  File "<string>", line 3, in main',
        "deeppart.errors.ConfigError: impossible value for timeout",
        "  expected: a finite number above 0",
        "  found: -1",
    ]
    assert "deeppart/config" in uncaught(REFUSED, DEEPPART_TRACEBACK="1")


@pytest.mark.usefixtures("working_directory")
def test_what_the_library_has_called_is_printed_and_its_own_causes_are_not(run_python: Run) -> None:
    script = """
import deeppart
class Own:
    def state_dict(self): return {}["gone"]
    def load_state_dict(self, state): pass
with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
    checkpointer.checkpoint({"own": Own()}, step=1)
"""
    text = run_python(script).stderr
    assert "line 4, in state_dict\nKeyError: 'gone'" in text and "line 7, in <module>" in text
    assert os.path.dirname(errors.__file__) not in text
    script = "import deeppart, pathlib; pathlib.Path('file').touch(); deeppart.Checkpointer(persistent_dir='file')"
    text = run_python(script).stderr
    assert text.count("Traceback") == 1 and "StorageError" in text


def test_other_errors_and_hooks_of_others_stay_as_they_are(run_python: Run) -> None:
    assert "ZeroDivisionError" in run_python("import deeppart; 1 / 0").stderr
    mine = "import sys; sys.excepthook = lambda *error: print('mine', file=sys.stderr)\n"
    assert uncaught(mine + REFUSED) == "mine\n"
