"""Options of a loader; its workers, when all processes of a job are told to end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from deeppart.elastic import ElasticDataLoader, Progress
from deeppart.elastic.adaptdl.torch.data import AdaptiveDataLoader
from deeppart.elastic.loader_options import steps_ahead, with_calm_workers
from tests.unit.elastic.jobs import Alone


class Signalled(Dataset[torch.Tensor]):
    """Whoever loads the fourth sample gets SIGUSR1, as from a batch system."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return torch.tensor(index)


def test_they_live_through_sigusr1() -> None:
    """By default it would end them: RuntimeError, DataLoader worker is killed by signal."""
    begun: list[int] = []
    loader = ElasticDataLoader(
        Signalled(), 2, shuffle=False, num_workers=1, worker_init_fn=begun.append, progress=Progress(), ranks=Alone()
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not begun, "it is called in the worker"


def test_the_callers_function_is_called_there_and_its_handler_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = [signal.SIG_DFL]
    monkeypatch.setattr(signal, "getsignal", lambda number: handlers[-1])
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    called: list[int] = []
    options = with_calm_workers({"num_workers": 2, "worker_init_fn": called.append})
    options["worker_init_fn"](7)
    assert called == [7] and handlers == [signal.SIG_DFL, signal.SIG_IGN]
    options["worker_init_fn"](8)  # something is there already
    assert len(handlers) == 2
    assert with_calm_workers({"batch_size": 3}) == {"batch_size": 3}


def test_those_of_adaptdls_loader_too() -> None:
    loader = AdaptiveDataLoader(Signalled(), 2, num_workers=1)
    assert loader.worker_init_fn is not None and "_begin" in repr(loader.worker_init_fn)


@pytest.mark.parametrize(
    ("options", "steps"), [({}, 0), ({"num_workers": 3}, 7), ({"num_workers": 2, "prefetch_factor": 4}, 9)]
)
def test_steps_that_workers_may_have_taken(options: dict[str, Any], steps: int) -> None:
    assert steps_ahead(options) == steps
