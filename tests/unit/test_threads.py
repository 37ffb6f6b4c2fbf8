"""Threads of the library: started in one place, where the error that ends one is passed on."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import deeppart
from deeppart._threads import start_thread


@pytest.mark.parametrize("kind", [ZeroDivisionError, MemoryError, SystemExit, KeyboardInterrupt])
def test_the_error_that_ends_a_thread_is_passed_on_whatever_it_is(kind: type[BaseException]) -> None:
    ended: list[tuple[BaseException, str]] = []

    def run() -> None:
        raise kind("gone")

    thread = start_thread(run, "some", lambda error: ended.append((error, threading.current_thread().name)))
    thread.join(20.0)
    [(error, name)] = ended
    assert type(error) is kind and name == "some" and thread.daemon


def test_no_thread_is_started_elsewhere() -> None:
    package = Path(deeppart.__file__).parent
    starts = re.compile(r"\bThread\(")
    found = [path.name for path in package.rglob("*.py") if starts.search(path.read_text()) and "test" not in path.name]
    assert found == ["_threads.py"]
