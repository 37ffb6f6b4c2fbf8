"""Sessions that are left by an exception, or dropped."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    PeerTimeoutError,
)
from deeppart.testing.states import difference
from tests.unit.one_rank import BIG, config, state


def test_an_error_in_the_with_block_comes_through_and_frees_the_directory(memory: Path) -> None:
    pending = None
    with pytest.raises(ZeroDivisionError):
        with deeppart.Checkpointer(config(memory)) as ck:
            ck.checkpoint(state(1), 1).wait(timeout=200)
            pending = ck.checkpoint(state(2, BIG), 2)
            1 / 0  # noqa: B018
    assert pending is not None
    deadline = time.monotonic() + 200
    while not pending.finished:
        assert time.monotonic() < deadline, "whoever waits for it must hear of its end"
        time.sleep(0.01)
    ck.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackgroundFailureWarning)
        with pytest.raises(CheckpointError, match="closed"):
            ck.checkpoint(state(3), 3)
    with deeppart.Checkpointer(config(memory)) as again:
        live = state(0, 1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)  # step 2 may have made it
            found = again.restore(live, step=1)
        assert found == 1 and difference(state(1), live) is None
        again.checkpoint(state(4), 4).wait(timeout=200)


def test_closing_before_it_is_finished_is_an_error_and_nobody_waits_for_ever(memory: Path) -> None:
    ck = deeppart.Checkpointer(config(memory, timeout=0.3))
    release = threading.Event()
    real = ck._session.node_levels["local"].open_part

    def stuck(*arguments: Any, **options: Any) -> Any:
        release.wait(20)
        return real(*arguments, **options)

    ck._session.node_levels["local"].open_part = stuck  # type: ignore[method-assign]
    pending = ck.checkpoint(state(1), 1)
    with pytest.raises(CheckpointError, match="not finished when the checkpointer was closed"):
        ck.close()
    release.set()
    for level in ("local", "persistent"):
        try:
            pending.wait(level, timeout=200)
        except PeerTimeoutError:
            pytest.fail(f"level {level} never ended")
        except CheckpointError:
            pass
    deeppart.Checkpointer(config(memory)).close()
