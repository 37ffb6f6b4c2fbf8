"""What Slurm is asked; with a real one: tests/slurm."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from deeppart.agent import end_of_job


def test_the_end_of_a_job_is_known_whatever_format_of_times_the_user_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = standard ] && echo 2026-11-30T18:00:00 || echo 18:00:00\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert end_of_job() == datetime(2026, 11, 30, 18).astimezone().timestamp()
