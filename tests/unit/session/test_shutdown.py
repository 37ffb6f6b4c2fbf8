"""Sessions that are left by an exception, or dropped."""

from __future__ import annotations

import subprocess
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, PeerTimeoutError
from tests.states import difference
from tests.unit.one_rank import BIG, config, state
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("workplace")


def test_an_error_in_the_with_block_comes_through_and_frees_the_directory(memory: Path) -> None:
    pending = None
    with pytest.raises(ZeroDivisionError):
        with deeppart.Checkpointer(config(memory)) as ck:
            ck.checkpoint(state(1), 1).wait(timeout=200)
            pending = ck.checkpoint(state(2, BIG), 2)
            1 / 0  # noqa: B018
    assert pending is not None
    wait_until(lambda: pending.finished)  # whoever waits for it must hear of its end
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


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("compression", "local"), [("none", 'local_dir = "scratch"\n'), ("tensor", "")])
def test_the_end_of_the_process_finishes_the_last_checkpoint(local: str, compression: str, run_python: Run) -> None:
    """Encoding and writing go on in threads after the interpreter has begun to end."""
    Path("deeppart.toml").write_text(f'{local}compression = "{compression}"\ncapture = "lazy"\n')
    done = run_python(
        """
        import torch, deeppart
        model = torch.nn.Linear(1500, 1500)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(1, 8):
            model(torch.rand(2, 1500)).sum().backward()
            optimizer.step()
            if step in (1, 7):
                state = {"model": model, "optimizer": optimizer, "noise": torch.rand(2_000_000), "n": step}
                deeppart.checkpoint(state, step=step)
        """
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert done.stderr.startswith("deeppart: settings from "), done.stderr
    assert deeppart.load("ckpt")["n"] == 7


ENDS = {
    "exit in the block": "with deeppart.Checkpointer() as ck:\n    ck.checkpoint(state, 7)\n    sys.exit()",
    "exit with 1": "with deeppart.Checkpointer() as ck:\n    ck.checkpoint(state, 7)\n    sys.exit(1)",
    "not closed": "ck = deeppart.Checkpointer()\nck.checkpoint(state, 7)",
    "dropped": "deeppart.Checkpointer().checkpoint(state, 7)",
    "the default": "deeppart.checkpoint(state, 7)",
}


@pytest.mark.parametrize("way", ENDS)
def test_however_the_process_ends(way: str, run_python: Run) -> None:
    """Without an exception, the last checkpoint is complete."""
    done = run_python("import sys, torch, deeppart\nstate = {'x': torch.ones(3_000_000)}\n" + ENDS[way])
    assert (done.returncode, done.stderr) == (1 if way == "exit with 1" else 0, "")
    assert deeppart.load("ckpt")["x"][-1] == 1


def test_a_checkpoint_that_fails_after_the_checkpointer_was_dropped_is_told(run_python: Run) -> None:
    done = run_python(
        """
        import torch, deeppart
        from deeppart.storage.persistent import PersistentLevel

        def refuse(*arguments):
            raise deeppart.errors.StorageError("refused")

        PersistentLevel.commit = refuse
        deeppart.Checkpointer().checkpoint({"n": 7}, step=7)
        """
    )
    assert "BackgroundFailureWarning" in done.stderr and "step 7" in done.stderr and "refused" in done.stderr


def test_nothing_but_the_default_is_closed(workplace: Path) -> None:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir="other")) as ck:
        deeppart.checkpoint({"n": 1}, 1).wait(timeout=200)
        deeppart.close()
        ck.checkpoint({"n": 2}, 2).wait(timeout=200)
    with pytest.raises(CheckpointError, match="closed"):
        ck.checkpoint({"n": 3}, 3)
