"""``deeppart run``: a training that fails comes to the same weights as one that does not, bit for bit."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.relaunch import Campaign, check_on_any_ranks, children, disturbed
from tests.states import difference
from tests.unit.cli_support import call, call_json
from tests.waiting import wait_until

SCRIPT = Path(__file__).with_name("run_job.py")
TIMEOUT_S = 300


def command(directory: Path, steps: int, way: str, *options: str) -> list[str]:
    words = [sys.executable, "-m", "deeppart", "run", "--ranks", "2", "--log", str(directory / "log"), *options, "--"]
    return [*words, sys.executable, str(SCRIPT), str(steps), str(directory / "result"), way]


def environment(directory: Path) -> dict[str, str]:
    return os.environ | {"DEEPPART_PERSISTENT_DIR": str(directory / "ckpt")}


def run(directory: Path, steps: int, way: str, *options: str) -> tuple[int, str]:
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        command(directory, steps, way, *options),
        check=False, env=environment(directory), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def result(directory: Path) -> Any:
    return torch.load(directory / "result")


def events(directory: Path) -> list[dict[str, Any]]:
    """Without those that tell how soon the ranks train: an epoch may be over before they are told."""
    found = [json.loads(line) for line in (directory / "log").read_text().splitlines()]
    return [each for each in found if each["event"] != "training"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("undisturbed")
    code, text = run(directory, 12, "none")
    assert code == 0, text
    return result(directory)


def test_a_failure_changes_nothing_of_the_result(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of a step that no level has yet: it is restored from memory."""
    monkeypatch.setenv("DEEPPART_FLUSH_BANDWIDTH", "4kB/s")
    code, text = run(tmp_path, 12, "kill")
    assert code == 0, text
    assert difference(result(tmp_path), undisturbed) is None
    found = events(tmp_path)
    assert [each["event"] for each in found] == ["started", "failed", "started"]
    assert found[1]["rank"] == 1 and found[1]["exit_code"] == -9
    assert re.search("restored step 6 from .*: 2 of 2 parts in memory", text), text


def test_a_signal_ends_it_with_a_checkpoint_and_it_goes_on_from_there(tmp_path: Path, undisturbed: Any) -> None:
    words = command(tmp_path, 10_000, "slow")
    with subprocess.Popen(words, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline() == "begun\n"
        job.send_signal(signal.SIGTERM)
        assert job.wait(TIMEOUT_S) == 143
    code, text = run(tmp_path, 12, "none")
    assert code == 0, text
    restored = re.search(r"restored step (\d+) ", text)
    assert restored is not None and int(restored[1]) >= 5
    if int(restored[1]) <= 12:
        assert difference(result(tmp_path), undisturbed) is None


def test_a_script_that_handles_no_signal_ends_at_its_next_checkpoint(tmp_path: Path) -> None:
    """The first time by a signal, to go on later; then by ``deeppart halt``, for good."""
    said = []
    for every, code in (("local=1,persistent=2", 143), ("auto", 0)):
        env = environment(tmp_path) | {"DEEPPART_EVERY": every}
        words = command(tmp_path, 10_000, "plain")
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None and job.stderr is not None and job.stdout.readline() == "begun\n"
            if every == "auto":
                assert call_json("halt", tmp_path / "ckpt")["halt"]["after"] == 0
            else:
                job.send_signal(signal.SIGUSR1)
            said.append(job.stderr.read())
            assert job.wait(TIMEOUT_S) == code, said
    saved = [re.search(r"step (\d+) is saved, and the ranks end", text) for text in said]
    restored = re.search(r"restored step (\d+) ", said[1])
    assert saved[0] and saved[1] and restored and restored[1] == saved[0][1], said
    steps = [each["step"] for each in call_json("ls", tmp_path / "ckpt")["steps"]]
    assert int(saved[0][1]) in steps and steps[-1] == int(saved[1][1])
    assert "no job is running" in call("halt", tmp_path / "ckpt", code=2)


def test_ranks_whose_last_checkpoint_fails_train_on_until_one_succeeds(tmp_path: Path) -> None:
    """Nothing that they have made since the one before is lost."""

    def limit_files(nbytes: int) -> None:
        for rank in [rank for zygote in children(job.pid) for rank in children(zygote)]:
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    words = command(tmp_path, 10_000, "plain")
    with subprocess.Popen(
        words, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None and job.stderr is not None and job.stdout.readline() == "begun\n"
        limit_files(1000)  # as a full file system
        job.send_signal(signal.SIGUSR1)
        refused = next(
            filter(None, (re.search(r"step (\d+) is not saved, so the ranks do", line) for line in job.stderr))
        )
        limit_files(resource.RLIM_INFINITY)
        said = job.stderr.read()
        assert job.wait(TIMEOUT_S) == 143, said
    saved = re.search(r"step (\d+) is saved, and the ranks end", said)
    assert saved and int(saved[1]) > int(refused[1]), said
    assert int(saved[1]) in [each["step"] for each in call_json("ls", tmp_path / "ckpt")["steps"]]
    assert [each["event"] for each in events(tmp_path)] == ["started", "signal"]


def test_a_node_that_comes_back_gets_ranks_again(tmp_path: Path) -> None:
    """Fewer ranks go on without it; nothing of what they make is made twice when it is there again."""
    job = Campaign(tmp_path, nodes=2, spares=0)

    def train(*ranks: int) -> None:
        """Until an epoch of the last of these numbers of ranks has made some steps."""
        wait_until(lambda: [e["ranks"] for e in job.events() if e["event"] == "started"] == [*ranks], TIMEOUT_S)
        began = job.steps()
        wait_until(lambda: job.steps() > began + 3, TIMEOUT_S)

    try:
        train(2)
        job.agents[1].kill()
        train(2, 1)
        job.repair()
        train(2, 1, 2)
        job.finish()
    finally:
        job.close()
    found = result(tmp_path)
    check_on_any_ranks(found)
    told = [(event["event"], event.get("ranks")) for event in job.events() if event["event"] != "training"]
    assert told == [("started", 2), ("node lost", None), ("started", 1), ("change", 2), ("started", 2)]


@pytest.mark.timeout(400)
@pytest.mark.now_and_then(3)
def test_what_kills_agents_and_ranks_on_several_nodes_changes_nothing_either(tmp_path: Path) -> None:
    """``python -m tests.faults.relaunch`` does more of it."""
    done = disturbed(tmp_path, kills=6, seed=1)
    assert sum(done.values()) >= 6
