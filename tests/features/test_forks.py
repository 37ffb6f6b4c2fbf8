"""Processes that are forked, as data loaders do it: they hold no lock, and finish nothing that is their parent's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.errors import DirectoryInUseError
from deeppart.storage import LOCK_NAME, DirectoryOwner

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_forked_process_that_outlives_its_parent_does_not_hold_the_directory(run_python: Run, tmp_path: Path) -> None:
    script = """
        import os, signal, sys, time
        from pathlib import Path
        from deeppart.storage.owner import DirectoryOwner
        owner = DirectoryOwner(Path(sys.argv[1]), "first")
        worker = os.fork()
        if worker == 0:
            os.setsid()
            os.close(1), os.close(2)
            time.sleep(60)
            os._exit(0)
        print(worker, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(script, str(tmp_path))
    worker = int(done.stdout)
    try:
        second = DirectoryOwner(tmp_path, "second")  # an error, if the worker held it
        with pytest.raises(DirectoryInUseError, match="owned by second"):
            DirectoryOwner(tmp_path, "third")
        second.close()
        os.kill(worker, 0)  # it lives
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_parent_keeps_the_lock_when_a_child_ends(tmp_path: Path) -> None:
    owner = DirectoryOwner(tmp_path, "first")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(DirectoryInUseError):
        DirectoryOwner(tmp_path, "second")
    owner.close()


def test_who_holds_the_lock_is_named(tmp_path: Path) -> None:
    """Also where it is not the process that took it: here it has ended, and left the open file to another program."""
    owner = DirectoryOwner(tmp_path, "job 7, process 1 on here")
    os.set_inheritable(owner._fd, True)
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    owner.close()
    time.sleep(0.2)
    try:
        with pytest.raises(DirectoryInUseError, match=rf"owned by job 7.*{holder.pid} \(python") as refused:
            DirectoryOwner(tmp_path, "second")
        assert LOCK_NAME not in str(refused.value.todo)
    finally:
        holder.kill()
        holder.wait()


def test_a_forked_process_that_ends_leaves_the_default_checkpointer_alone(run_python: Run, tmp_path: Path) -> None:
    script = """
        import os, sys, time, torch, deeppart
        os.chdir(sys.argv[1])
        os.environ["DEEPPART_PERSISTENT_DIR"] = sys.argv[1] + "/p"
        os.environ["DEEPPART_LOCAL_DIR"] = sys.argv[1] + "/n"
        state = {"x": torch.arange(100_000)}
        def spare_files():
            found = os.walk("n")  # which passes over what is removed meanwhile
            return sorted(f"{path}/{name}" for path, _, names in found if "/.spare" in path for name in names)
        for step in (1, 2, 3):
            pending = deeppart.checkpoint(state, step, force=True)
            pending.wait("local"), pending.wait("persistent")
        deadline = time.monotonic() + 60
        while not spare_files() and time.monotonic() < deadline:
            time.sleep(0.01)  # an old step is set aside after the new one counts as complete
        spares = spare_files()
        assert spares
        child = os.fork()
        if child == 0:
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert spares == spare_files()
        deeppart.checkpoint(state, 4, force=True).wait("persistent")
    """
    done = run_python(script, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_forked_process_that_calls_is_refused(run_python: Run, tmp_path: Path) -> None:
    script = """
        import os, sys, torch, deeppart
        os.chdir(sys.argv[1])
        config = deeppart.Config(persistent_dir=sys.argv[1] + "/p")
        os.environ["DEEPPART_PERSISTENT_DIR"] = sys.argv[1] + "/q"
        state = {"x": torch.arange(100)}
        with deeppart.Checkpointer(config) as ck:
            deeppart.checkpoint(state, 1)
            ck.checkpoint(state, 1)
            child = os.fork()
            if child == 0:
                told = []
                for call in (ck.checkpoint, deeppart.checkpoint, ck.restore, deeppart.restore):
                    try:
                        call(state, 2)
                    except deeppart.errors.CheckpointError as error:
                        told.append(str(error))
                ck.close()
                ck.__exit__(ValueError, ValueError(), None)
                os._exit(sum("forked from rank 0" in text and "training process" in text for text in told))
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 4, status
            ck.checkpoint(state, 2).wait()
            deeppart.checkpoint(state, 2).wait()
        assert deeppart.restore(state) == 2
        print("alive")
    """
    done = run_python(script, str(tmp_path))
    assert done.stdout == "alive\n", done.stderr
