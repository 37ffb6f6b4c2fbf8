"""``deeppart cat``: arguments and exit codes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit.cli.test_prune_signed import KEY, OTHER, key_file
from tests.unit.cli_support import call, call_json, flip, forge, invoke, part_path, save, save_states


def test_steps_and_ranks(tmp_path: Path) -> None:
    save(tmp_path / "a", 1, 2)
    assert call("cat", tmp_path / "a", "rate") == "0.002\n"
    assert call("cat", tmp_path / "a", "rate", "--step", 1) == "0.001\n"
    forge(tmp_path / "b", 5)
    result = invoke("cat", tmp_path / "b", "rng", "--rank", 2)
    assert result.stdout == f"[{' '.join(16 * '2')}]\n"
    assert result.stderr == "of what each rank saved for itself, this is rank 2's\n"
    assert invoke("cat", tmp_path / "b", "a").stderr == ""


def test_what_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for arguments in (("model/wieght",), ("model/*",), ("rate", "--step", 9), ("rate", "--rank", 1)):
        result = invoke("cat", tmp_path, *arguments)
        assert (result.exit_code, result.stdout) == (1, "") and result.stderr.startswith("error: ")
    assert "such as model/weight" in call("cat", tmp_path, "model/wieght", code=1)
    assert call_json("cat", tmp_path, "model/*", code=1)["error"]["found"] == "model/weight, model/head, model/bias"


@pytest.mark.parametrize("forms", [("--npy", "--raw"), ("--npy", "--json"), ("--full", "--raw")])
def test_one_form_at_a_time(tmp_path: Path, forms: tuple[str, str]) -> None:
    assert "exclude each other" in call("cat", tmp_path, "x", *forms, code=2)


@pytest.mark.parametrize("form", [(), ("--npy",), ("--raw",), ("--json",), ("--full",)])
def test_no_byte_of_what_is_damaged_is_shown(tmp_path: Path, form: tuple[str, ...]) -> None:
    save_states(tmp_path, {"x": torch.arange(5000)}, compression="none")
    assert invoke("cat", tmp_path, "x", *form).exit_code == 0
    flip(part_path(tmp_path, 1), 4096 + 1000)
    result = invoke("cat", tmp_path, "x", *form)
    assert result.exit_code == 1 and "digest of a chunk" in result.output
    assert result.stdout_bytes == b"" or form == ("--json",)


def test_bytes_are_not_for_a_terminal(tmp_path: Path) -> None:
    main, other = pty.openpty()
    command = [sys.executable, "-m", "deeppart.cli", "cat", str(tmp_path), "x", "--npy"]
    try:
        refused = subprocess.run(command, stdout=other, stderr=subprocess.PIPE, check=False, timeout=60)
        assert refused.returncode == 2 and b"send them to a file or a pipe" in refused.stderr
    finally:
        os.close(other)
        os.close(main)


def test_signatures(tmp_path: Path) -> None:
    key, other = key_file(tmp_path / "key", KEY), key_file(tmp_path / "other", OTHER)
    save(tmp_path / "a", 1, sign_key_file=str(key))
    result = invoke("cat", tmp_path / "a", "rate")
    assert result.stdout == "0.001\n" and "signatures were not checked" in result.stderr
    assert call("cat", tmp_path / "a", "rate", "--sign-key-file", key) == "0.001\n"
    result = invoke("cat", tmp_path / "a", "rate", "--sign-key-file", other)
    assert (result.exit_code, result.stdout) == (1, "")
