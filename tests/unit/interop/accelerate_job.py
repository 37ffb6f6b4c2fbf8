"""A loop with Accelerate, for test_accelerate.py: checkpoints in the middle of epochs, and between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, DistributedType

from deeppart.interop.accelerate import DeeppartAccelerate
from tests.unit.interop.trainer_runs import EVERY, STEPS, Data, Run, Weights, main, network, refused


class Count:
    """An object for ``register_for_checkpointing``."""

    def __init__(self) -> None:
        self.samples = 0

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.samples = state["samples"]


def train(run: Run) -> Weights:
    loaders = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=loaders)
    model, count = network(), Count()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loader: Any = torch.utils.data.DataLoader(Data(), batch_size=2, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accelerator.register_for_checkpointing(count)
    torch.manual_seed(100 + run.rank)
    with DeeppartAccelerate(accelerator, run.config) as checkpoints:
        step = checkpoints.restore() or 0
        while step < STEPS:
            for x, y in loader:
                run.stepped(step)
                loss = ((model(x) - y) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step, count.samples = step + 1, count.samples + len(x)
                run.note([step, count.samples, loss.item().hex()])
                if step % EVERY == 0:
                    checkpoints.save(step)
                if step == STEPS:
                    break
            if step % EVERY and step < STEPS:
                checkpoints.save(step)  # the epoch has ended
    weights: Weights = accelerator.unwrap_model(model).state_dict()
    return weights


def refusals(top: Path) -> list[str]:
    """What it says to FSDP."""
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    return refused(lambda: DeeppartAccelerate(accelerator))


if __name__ == "__main__":
    main(train, refusals, sigterm=False, grows=True)
