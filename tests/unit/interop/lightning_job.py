"""A training with Lightning, for test_lightning.py; validation in the middle of epochs, gradients accumulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from deeppart.interop.lightning import DeeppartCallback
from tests.unit.interop.trainer_runs import EVERY, STEPS, Data, Run, Weights, main, network, refused


class Module(pl.LightningModule):
    """Logs every batch of training and validation."""

    def __init__(self, run: Run | None = None) -> None:
        super().__init__()
        self.run, self.network = run, network()

    def loss(self, batch: Any, *place: Any) -> Any:
        loss = ((self.network(batch[0]) - batch[1]) ** 2).mean()
        if self.run is not None:
            self.run.note([*place, self.trainer.global_step, loss.item().hex()])
        return loss

    def training_step(self, batch: Any, place: int) -> Any:
        return self.loss(batch, "train", self.trainer.current_epoch, place)

    def validation_step(self, batch: Any, place: int) -> None:
        if not self.trainer.should_stop:  # Lightning validates once more when it is told to stop
            self.loss(batch, "validate")

    def on_train_batch_start(self, batch: Any, place: int) -> None:
        if self.run is not None:
            self.run.stepped(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS), "interval": "step"}
        ]


def trainer(folder: Path, ranks: int, **settings: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(
        accelerator="cpu",
        strategy="ddp" if ranks > 1 else "auto",
        devices=ranks,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        **quiet,
        **settings,
    )


def train(run: Run) -> Weights:
    module = Module(run)
    torch.manual_seed(100 + run.rank)
    order: dict[str, Any] = {"shuffle": True}
    if run.ranks > 1:
        order = {"sampler": DistributedSampler(Data(), run.ranks, run.rank)}
    callback = DeeppartCallback(run.config, every=EVERY)
    alive = list[bool]()
    callback._saving.is_alive = lambda: alive.append(True)  # type: ignore[method-assign]
    accumulate = max(1, 3 - run.ranks)
    steps = {"max_steps": STEPS, "accumulate_grad_batches": accumulate, "val_check_interval": 4}
    fitting = trainer(run.folder, run.ranks, callbacks=[callback], **steps)
    fitting.fit(module, StatefulDataLoader(Data(), batch_size=2, **order), DataLoader(Data(), batch_size=11))
    assert alive, "validations"
    return module.network.state_dict()


def refusals(top: Path) -> list[str]:
    """What it says to a sharding strategy."""
    from lightning.pytorch.strategies import FSDPStrategy

    fitting = trainer(top, 1, callbacks=[])
    fitting._accelerator_connector.strategy = object.__new__(FSDPStrategy)
    return refused(lambda: DeeppartCallback().on_fit_start(fitting, None))


if __name__ == "__main__":
    main(train, refusals, grows=True)
