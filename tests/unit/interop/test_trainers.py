"""Trainings of six libraries: killed and ended ones go on to the same bits, and what cannot be saved is refused."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from deeppart.errors import ConfigError
from deeppart.interop.saving import require
from tests.unit.interop.trainer_runs import EVERY, STEPS, check, results


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_transformers(tmp_path: Path) -> None:
    found = results("transformers_job", ("transformers", "accelerate"), tmp_path)
    check(found)
    grown = [step for step, _ in found["grown"]]
    assert grown[-1] == STEPS and grown[0] > EVERY  # from the middle, by three
    later, foreign, not_resumed, strict = found["refusals"]
    assert "model_init" in later
    assert "does not have this callback" in foreign
    assert "resume_from_checkpoint=callback.resume(trainer)" in not_resumed
    assert "found: per rank: rng/torch\n" in strict and "per_rank={'rng/*': 'drop'}" in strict


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_lightning(tmp_path: Path) -> None:
    found = results("lightning_job", ("lightning", "torchdata"), tmp_path)
    check(found)
    steps = [line[3] for line in found["grown"] if line[0] == "train"]
    assert steps == list(range(steps[0], STEPS)) and steps[0] >= EVERY
    (refusal,) = found["refusals"]
    assert "FSDPStrategy" in refusal and "single device, or DDP" in refusal


@pytest.mark.now_and_then(4)
@pytest.mark.timeout(260)
def test_accelerate(tmp_path: Path) -> None:
    found = results("accelerate_job", ("accelerate", "torchdata"), tmp_path)
    check(found, sigterm=False)
    steps = [step for step, *_ in found["grown"]]
    assert steps == list(range(steps[0], STEPS + 1)) and steps[0] > EVERY
    (refusal,) = found["refusals"]
    assert "FSDP" in refusal and "one process, or DDP" in refusal


@pytest.mark.timeout(260)
def test_torchtitan(tmp_path: Path) -> None:
    needs = ("torchtitan", "spmd_types", "triton", "torchdata")
    found = results("torchtitan_job", needs, tmp_path, "pip install torchtitan==0.3.0 triton")
    check(found, sigterm=False)
    positions, generators, seed, names, remote, ours, step = found["refusals"]
    assert "dataloader_dp_rank_0_of_1" in positions
    assert "rng" in generators and "1 rank restores" in generators
    assert "initial_load_path" in seed
    assert "optimiser" in names and "lr_scheduler" in names
    assert "s3://x/y" in remote
    assert "whole-1/ckpt" in ours and "deeppart export" in ours
    assert "step 7" in step


@pytest.mark.timeout(620)
def test_deepspeed(tmp_path: Path) -> None:
    needs = ("deepspeed", "torchdata")
    found = results("deepspeed_job", needs, tmp_path, "pip install deepspeed==0.19.8", limit_s=600.0)
    check(found, sigterm=False, sizes=(2,), variants=("-zero1", "-zero2", "-zero3", "-bf16-zero1"))
    stage, ranks, loader = found["refusals"]
    assert "ZeRO stage 0" in stage
    assert "2 ranks" in ranks and "1 rank restores" in ranks and "flat and opaque" in ranks
    assert "'plain' has no position" in loader


@pytest.mark.timeout(260)
def test_megatron(tmp_path: Path) -> None:
    install = "pip install --no-deps megatron-core==0.16.1"
    pytest.importorskip("megatron.core", reason=install)
    found = results("megatron_job", ("megatron.core", "torchdata"), tmp_path, install)
    check(found, sigterm=False)
    taken_up, refused = found["refusals"]
    assert taken_up == "step 28 of two ranks on one"
    assert "linear_fc2" in refused and "[2, 5, 8]" in refused


# --- versions ---------------------------------------------------------------------------------------------------------


def installed(folder: Path, package: str, version: str) -> None:
    """What an installed package leaves for ``importlib.metadata``."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("oldest", "enough"),
    [
        *((oldest, True) for oldest in ("2", "2.9.11", "2.10.0", "2.10rc1", "0.1rc1")),
        *((oldest, False) for oldest in ("2.10.1", "2.11", "10.0", "2.100")),
    ],
)
def test_versions_are_compared_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: str, enough: bool
) -> None:
    """What is installed is 2.10, which as a text comes before 2.9."""
    installed(tmp_path, "made-up", "2.10.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with nullcontext() if enough else pytest.raises(ConfigError, match="needs a newer made-up"):
        require("made-up", oldest, "this")


def test_what_is_missing_or_too_old_is_named_with_both_versions() -> None:
    with pytest.raises(ConfigError) as told:
        require("torch", "99.1", "deeppart.interop.x")
    for part in ("deeppart.interop.x", "torch 99.1 or newer", metadata.version("torch"), "pip install 'torch>=99.1'"):
        assert part in str(told.value)
    with pytest.raises(ConfigError, match="no-such-trainer"):
        require("no-such-trainer", "1", "this")


VERSIONS = {
    "accelerate": ("accelerate", "1.9.0"),
    "lightning": ("lightning", "2.5.9"),
    "transformers": ("transformers", "4.57.0"),
    "torchtitan": ("torchtitan", "0.2.2"),
    "deepspeed": ("deepspeed", "0.17.6"),
    "megatron": ("megatron-core", "0.14.0"),
}


def test_each_module_refuses_a_trainer_that_is_too_old(tmp_path: Path) -> None:
    """Before it imports anything of it, so an old layout of its modules does not matter."""
    for package, version in VERSIONS.values():
        installed(tmp_path, package, version)
    script = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
import deeppart, deeppart.interop, deeppart.checkpointer
from deeppart.errors import ConfigError
print(*sys.modules)
for module in {sorted(VERSIONS)!r}:
    try:
        importlib.import_module(f"deeppart.interop.{{module}}")
    except ConfigError as error:
        print(module, "/", str(error).replace(chr(10), " "))
"""
    command = [sys.executable, "-c", script]
    modules, *told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=200
    ).stdout.splitlines()
    assert not {"transformers", "accelerate", "lightning", "torchdata"}.intersection(modules.split())
    assert [line.split(" / ")[0] for line in told] == sorted(VERSIONS)
    for line in told:
        package, version = VERSIONS[line.split(" / ")[0]]
        assert package in line and version in line and "newer" in line
