"""The tables of registered types."""

from __future__ import annotations

import threading

import pytest

import deeppart
from deeppart.errors import ConfigError
from deeppart.state.tree import objects as registry


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_name", {})


def test_many_threads_register_each_type_once() -> None:
    kinds = [type(f"Type{number}", (), {}) for number in range(50)]
    refused: list[Exception] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait(timeout=30)
        for kind in kinds:
            try:
                deeppart.register(kind, repr, kind)
            except ConfigError as error:
                refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(refused) == 150 and len(registry._by_type) == len(registry._by_name) == 50
