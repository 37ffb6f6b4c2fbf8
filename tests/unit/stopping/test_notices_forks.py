"""What a process hears, its children do not: they have the handlers that were there before."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from deeppart.stopping import Signals


def end_of(pid: int) -> int:
    """What waitpid says; a child that does not end within 10 s is killed."""
    for _ in range(1000):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 999


@pytest.mark.parametrize("again", [False, True])
def test_a_process_ends_by_a_signal_when_both_are_over(again: bool) -> None:
    """By default a signal ends a process: not by a handler that is left over. ``again``: the first begins once more."""
    pid = os.fork()
    if pid == 0:
        first, second = Signals([signal.SIGTERM]), Signals([signal.SIGTERM])
        first.listen()
        second.listen()
        first.put_back()
        if again:
            first.listen()
            signal.raise_signal(signal.SIGTERM)
            if first.received is None or second.received is None:
                os._exit(1)
            first.put_back()
        second.put_back()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(1)
        os._exit(0)
    assert end_of(pid) == -signal.SIGTERM


def test_a_forked_child_ends_by_a_signal(signals: Signals) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"!")
        time.sleep(20)
        os._exit(0)
    os.read(reading, 1)
    os.kill(pid, signal.SIGTERM)
    assert end_of(pid) == -signal.SIGTERM
    assert signals.received is None


class Handlers(Dataset[torch.Tensor]):
    """What a worker that is asked for a sample finds: whether this class's handler is on SIGUSR1."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        of_signals = getattr(signal.getsignal(signal.SIGUSR1), "__module__", None) == Signals.__module__
        return torch.tensor([of_signals, os.getpid()])


def test_workers_of_a_loader_have_the_handlers_that_were_there_before(signals: Signals) -> None:
    found = next(iter(DataLoader(Handlers(), batch_size=2, num_workers=1, multiprocessing_context="fork")))
    assert found[:, 0].tolist() == [0, 0] and os.getpid() not in found[:, 1].tolist()
    assert Handlers()[0][0] == 1
