"""The environment of a replica (rank): AdaptDL's variables, or the launcher's if they are not set."""

from __future__ import annotations

import os

from deeppart.config import launch


def checkpoint_path() -> str | None:
    """The checkpoint directory: ``ADAPTDL_CHECKPOINT_PATH``, else ``DEEPPART_PERSISTENT_DIR``, else None."""
    return _first("ADAPTDL_CHECKPOINT_PATH", "DEEPPART_PERSISTENT_DIR")


def share_path() -> str | None:
    """A directory for data that all replicas share: ``ADAPTDL_SHARE_PATH``."""
    return _first("ADAPTDL_SHARE_PATH")


def job_id() -> str | None:
    """``ADAPTDL_JOB_ID``, else the id that torchrun or Slurm gives the job."""
    return _first("ADAPTDL_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


def master_addr() -> str:
    """The address of replica 0: ``ADAPTDL_MASTER_ADDR``, or 0.0.0.0."""
    return os.environ.get("ADAPTDL_MASTER_ADDR", "0.0.0.0")


def master_port() -> int:
    """A free port of replica 0: ``ADAPTDL_MASTER_PORT``, or 0 for none."""
    return int(os.environ.get("ADAPTDL_MASTER_PORT", "0"))


def replica_rank() -> int:
    """``ADAPTDL_REPLICA_RANK``, else the launcher's rank, or 0."""
    if (text := _first("ADAPTDL_REPLICA_RANK")) is not None:
        return int(text)
    return 0 if (launched := launch()) is None else launched.rank


def num_replicas() -> int:
    """``ADAPTDL_NUM_REPLICAS``, else the launcher's number of ranks, or 1."""
    if (text := _first("ADAPTDL_NUM_REPLICAS")) is not None:
        return int(text)
    return 1 if (launched := launch()) is None else launched.size


def num_nodes() -> int:
    """``ADAPTDL_NUM_NODES``, else the number of torchrun or Slurm, or the number of replicas."""
    text = _first("ADAPTDL_NUM_NODES", "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES")
    return num_replicas() if text is None else int(text)


def num_restarts() -> int:
    """``ADAPTDL_NUM_RESTARTS``, else torchrun's count of restarts, or 0."""
    return int(_first("ADAPTDL_NUM_RESTARTS", "TORCHELASTIC_RESTART_COUNT") or 0)


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
