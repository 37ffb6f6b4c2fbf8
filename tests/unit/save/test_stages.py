"""Stages: threads that take turns, end in order, and go on after an error that nobody expected."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from deeppart.errors import DeeppartError
from deeppart.save.stages import Stage, Stages

PATIENCE_S = 30.0


def test_messages_go_through_in_order_and_the_threads_end_after_them() -> None:
    log, ended = list[tuple[str, Any]](), list[str]()

    def first(message: int) -> None:
        log.append(("first", message))
        stages.put("second", message + 10)

    def give_up(message: int, failure: DeeppartError) -> None:
        raise AssertionError(message) from failure

    stages = Stages(
        [
            Stage("first", first, give_up, next=("second", "nowhere")),
            Stage("second", lambda message: log.append(("second", message)), give_up),
        ],
        prepare=lambda: None,
        ended=ended.append,
        failed=lambda thread, error: pytest.fail(f"{thread}: {error}"),
    )
    stages.start()
    for message in (1, 2, 3):
        stages.put("first", message)
    stages.end(PATIENCE_S)
    assert [each for each in log if each[0] == "first"] == [("first", n) for n in (1, 2, 3)]
    assert [each for each in log if each[0] == "second"] == [("second", n) for n in (11, 12, 13)]
    assert ended == ["first", "second"]


def test_after_an_error_the_rest_is_given_up_and_the_next_message_is_taken() -> None:
    given_up, done = list[tuple[int, str]](), list[int]()

    def work(message: int) -> None:
        if message == 1:
            raise MemoryError("none left")
        done.append(message)

    names = list[str]()
    stages = Stages(
        [Stage("only", work, lambda message, failure: given_up.append((message, str(failure))))],
        prepare=lambda: names.append(threading.current_thread().name),
        ended=lambda _: None,
        failed=lambda thread, error: pytest.fail(f"{thread}: {error}"),
    )
    stages.start()
    stages.put("only", 1)
    stages.put("only", 2)
    stages.end(PATIENCE_S)
    [(message, text)] = given_up
    assert message == 1 and "MemoryError: none left" in text
    assert done == [2] and names == ["deeppart-only"]


def test_an_error_in_giving_up_ends_the_thread_and_those_behind_it_once_it_is_told() -> None:
    told = list[Any]()

    def broken(*_: object) -> None:
        raise SystemExit("enough")

    stages = Stages(
        [Stage("first", broken, broken, next=("second",)), Stage("second", lambda _: None, broken)],
        prepare=lambda: None,
        ended=told.append,
        failed=lambda thread, error: told.append((thread, repr(error))),
    )
    stages.start()
    stages.put("first", 1)
    stages.end(PATIENCE_S)
    assert told == [("deeppart-first", "SystemExit('enough')"), "first", "second"]
