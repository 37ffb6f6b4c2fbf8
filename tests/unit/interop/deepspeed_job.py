"""Training with DeepSpeed on the CPU, ZeRO 1 to 3, for test_deepspeed.py."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1"}

import deepspeed
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import deeppart
from deeppart.interop.deepspeed import CheckpointEngine
from tests.unit.interop.trainer_runs import EVERY, STEPS, Data, Run, Weights, main, network, refused

# It would compile an operator for ranks that share memory: minutes, and forever where a build was once broken off.
setattr(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)  # noqa: B010 - no attribute of ours


def engine(stage: int, *, bf16: bool = False) -> Any:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, "zero_allow_untested_optimizer": True}
    config["bf16"] = {"enabled": bf16}
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)
    return made


def train(run: Run) -> Weights:
    deepspeed.init_distributed("gloo", dist_init_required=True, verbose=False)
    bf16 = "bf16" in run.variant
    training = engine(int(run.variant[-1]), bf16=bf16)
    sampler: Any = DistributedSampler(Data(), run.ranks, run.rank)
    loader = StatefulDataLoader(Data(), batch_size=2, sampler=sampler)
    torch.manual_seed(100 + run.rank)
    checkpoints = CheckpointEngine(training, run.config, loaders={"train": loader})
    client_state = checkpoints.resume()
    epoch = 0 if client_state is None else client_state["epoch"]
    while training.global_steps < STEPS:
        sampler.set_epoch(epoch)
        for x, y in loader:
            run.stepped(training.global_steps)
            if bf16:
                x, y = x.bfloat16(), y.bfloat16()
            loss = ((training(x) - y) ** 2).mean()
            training.backward(loss)
            training.step()
            run.note([training.global_steps, epoch, loss.item().hex(), training.get_lr()])
            if training.global_steps % EVERY == 0:
                training.save_checkpoint(str(run.folder / "out"), client_state={"epoch": epoch})
            if training.global_steps == STEPS:
                break
        epoch += 1
    checkpoints.close()
    with deepspeed.zero.GatheredParameters(list(training.module.parameters())):
        weights = {name: value.detach().clone() for name, value in training.module.named_parameters()}
    deepspeed.comm.destroy_process_group()
    return weights


def refusals(top: Path) -> list[str]:
    """What it says to ZeRO 0, and to one rank that resumes what two have saved."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = "0"
    deepspeed.init_distributed("gloo", dist_init_required=True, verbose=False)
    _weights_alone(top / "alone")
    plain: Any = torch.utils.data.DataLoader(Data())
    return refused(
        lambda: CheckpointEngine(engine(0)),
        lambda: _resumed_by_one(top),
        lambda: CheckpointEngine(engine(1), loaders={"plain": plain}),
    )


def _weights_alone(folder: Path) -> None:
    """Weights for other programs are written, and are no checkpoint; a loader that was not saved is named."""
    training = engine(2)
    config = deeppart.Config(persistent_dir=str(folder / "ckpt"))
    checkpoints = CheckpointEngine(training, config)
    training.backward(training(torch.ones(2, 4)).sum())
    training.step()
    assert training.save_16bit_model(str(folder / "out")) and checkpoints.pending is None
    training.save_checkpoint(str(folder / "out"), client_state={"epoch": 5})
    assert training.save_16bit_model(str(folder / "out"), "again.bin")
    checkpoints.close()
    weights = dict(training.module.named_parameters())
    for name in ("pytorch_model.bin", "again.bin"):
        written = torch.load(folder / "out" / name)
        assert written.keys() == weights.keys() and all(torch.equal(written[key], weights[key]) for key in weights)
    later = CheckpointEngine(engine(2), config, loaders={"new": StatefulDataLoader(Data())})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = later.resume()
    assert found is not None and found["epoch"] == 5
    assert [each for each in told if issubclass(each.category, deeppart.DeeppartWarning) and "new" in str(each.message)]
    later.close()


def _resumed_by_one(top: Path) -> None:
    training = engine(2)
    before = [each.detach().clone() for each in training.module.parameters()]
    try:
        CheckpointEngine(training, Run(top / "whole-2-zero2", 0, 1, None, 0).config).resume()
    finally:
        assert all(map(torch.equal, before, training.module.parameters()))


if __name__ == "__main__":
    main(train, refusals, sigterm=False, sizes=(2,), variants=("-zero1", "-zero2", "-zero3", "-bf16-zero1"))
