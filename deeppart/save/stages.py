"""Stages: what the background threads of a rank do, as data, and the threads that do it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from deeppart._threads import start_thread
from deeppart.errors import DeeppartError, as_error


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that is done to checkpoints, one after the other.

    Attributes:
        name: of the thread: ``deeppart-NAME``.
        work: does it, given what the stage before hands over.
        give_up: called instead of the rest of the work where an error of no expected kind has come out of it: the
            other ranks wait for what this one has to tell them. An error of its own ends the thread.
        next: stages that get no more once this one has ended.
    """

    name: str
    work: Callable[[Any], None]
    give_up: Callable[[Any, DeeppartError], None]
    next: tuple[str, ...] = ()


class Stages:
    """Threads, one for each stage, that take what they are given from a queue each."""

    def __init__(
        self,
        stages: list[Stage],
        prepare: Callable[[], None],
        ended: Callable[[str], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._stages, self._prepare, self._ended, self._failed = stages, prepare, ended, failed
        self._queues: dict[str, queue.SimpleQueue[Any]] = {stage.name: queue.SimpleQueue() for stage in stages}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for stage in self._stages:
            self._threads.append(
                start_thread(partial(self._run, stage), _thread_name(stage), partial(self._fail, stage))
            )

    def put(self, stage: str, message: object) -> None:
        """Give something to a stage."""
        self._queues[stage].put(message)

    def end(self, timeout: float) -> None:
        """Let the threads end once they have done what they have been given; wait for each at most that long."""
        self._queues[self._stages[0].name].put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run(self, stage: Stage) -> None:
        self._prepare()
        while (message := self._queues[stage.name].get()) is not None:
            try:
                stage.work(message)
            except BaseException as error:  # must not end the thread: the other ranks wait for its rounds
                stage.give_up(message, as_error(error, "background work failed"))
            del message  # it holds memory that somebody may wait for
        self._end(stage)

    def _fail(self, stage: Stage, error: BaseException) -> None:
        try:
            self._failed(_thread_name(stage), error)
        finally:
            self._end(stage)

    def _end(self, stage: Stage) -> None:
        for follower in stage.next:
            if follower in self._queues:
                self._queues[follower].put(None)
        self._ended(stage.name)


def _thread_name(stage: Stage) -> str:
    return f"deeppart-{stage.name}"
