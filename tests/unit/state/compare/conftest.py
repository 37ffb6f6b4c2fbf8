"""Fixtures of what is compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deeppart.state.compare.optimizers import TrainingWatch


@pytest.fixture
def watch() -> Iterator[TrainingWatch]:
    """Watches the optimizers of this process, for leaves of more than 1000 bytes."""
    watching = TrainingWatch(1000)
    yield watching
    watching.close()
