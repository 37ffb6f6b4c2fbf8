"""AdaptDL's variables are asked first, the launcher's then."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl import env


def test_adaptdl(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "CHECKPOINT_PATH": "/c", "SHARE_PATH": "/s", "JOB_ID": "j", "MASTER_ADDR": "h", "MASTER_PORT": "7",
        "REPLICA_RANK": "2", "NUM_REPLICAS": "6", "NUM_NODES": "3", "NUM_RESTARTS": "4",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"ADAPTDL_{name}", value)
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "9")
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (2, 6, 3, 4)
    assert (env.checkpoint_path(), env.share_path(), env.job_id()) == ("/c", "/s", "j")
    assert (env.master_addr(), env.master_port()) == ("h", 7)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "RANK": "5", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "3", "DEEPPART_PERSISTENT_DIR": "/d",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (5, 8, 2, 3)
    assert (env.checkpoint_path(), env.job_id()) == ("/d", "r")
