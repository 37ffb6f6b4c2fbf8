"""Stages: what the background threads of a rank do, as data, and the threads that do it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deeppart.errors import DeeppartError, as_error


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that is done to checkpoints, one after the other.

    Attributes:
        name: of the thread: ``deeppart-NAME``.
        work: does it, given what the stage before hands over.
        give_up: called instead of the rest of the work where an error of no expected kind has come out of it: the
            other ranks wait for what this one has to tell them.
        next: stages that get no more once this one has ended.
    """

    name: str
    work: Callable[[Any], None]
    give_up: Callable[[Any, DeeppartError], None]
    next: tuple[str, ...] = ()


class Stages:
    """Threads, one for each stage, that take what they are given from a queue each.

    Args:
        stages: in order; what is given to the first is passed on by its ``work``.
        prepare: called first in each thread.
        ended: called by each thread that has no more to do, with the name of its stage.
    """

    def __init__(self, stages: list[Stage], prepare: Callable[[], None], ended: Callable[[str], None]) -> None:
        self._first = stages[0].name
        self._prepare, self._ended = prepare, ended
        self._queues: dict[str, queue.SimpleQueue[Any]] = {stage.name: queue.SimpleQueue() for stage in stages}
        self._threads = [
            threading.Thread(target=self._run, args=(stage,), name=f"deeppart-{stage.name}", daemon=True)
            for stage in stages
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, stage: str, message: object) -> None:
        """Give something to a stage."""
        self._queues[stage].put(message)

    def end(self, timeout: float) -> None:
        """Let the threads end once they have done what they have been given; wait for each at most that long."""
        self._queues[self._first].put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run(self, stage: Stage) -> None:
        self._prepare()
        while (message := self._queues[stage.name].get()) is not None:
            try:
                stage.work(message)
            except Exception as error:  # a bug of ours must not end the thread: the other ranks wait for its rounds
                stage.give_up(message, as_error(error, "background work failed"))
            del message  # it holds memory that somebody may wait for
        for follower in stage.next:
            if follower in self._queues:
                self._queues[follower].put(None)
        self._ended(stage.name)
