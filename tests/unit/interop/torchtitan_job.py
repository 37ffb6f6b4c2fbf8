"""torchtitan's own Trainer with FSDP2, for test_torchtitan.py; on the CPU, where torchtitan asks for a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchtitan.tools.utils as device_tools
from torch.distributed.fsdp import fully_shard

from tests.ports import free_port
from tests.unit.interop.trainer_runs import EVERY, STEPS, Run, Weights, main

# What torchtitan asks of the device; it has no CPU of its own, and takes these when its modules are imported.
_MEMORY = {"get_device_properties": lambda _: SimpleNamespace(total_memory=1 << 34), "memory_stats": lambda _: {}}
_CALLS = {"get_device_name": lambda _: "CPU", "reset_peak_memory_stats": lambda: None, "empty_cache": lambda: None}
_PLACE = {"set_device": lambda _: None, "device_count": lambda: 8, "current_device": lambda: 0}
device_tools.device_type = "cpu"
device_tools.device_module = SimpleNamespace(synchronize=lambda: None, **_MEMORY, **_CALLS, **_PLACE)
if not hasattr(torch.distributed, "set_timeout"):  # torchtitan 0.3.0 sets shorter timeouts by it; torch 2.13 lacks it
    setattr(torch.distributed, "set_timeout", lambda *_: None)  # noqa: B010 - mypy knows that it is not there

from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config.configs import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.common import Embedding, Linear
from torchtitan.protocols import BaseModel
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer as TitanTrainer

from deeppart.errors import DeeppartError
from deeppart.interop.torchtitan import CheckpointManager
from deeppart.interop.training_state import own_generator

LENGTH, WORDS = 16, 64


class Tokens(torch.utils.data.IterableDataset[Any]):
    """A sequence without end that knows its position; half of it is drawn from the process's random numbers."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def __iter__(self) -> Any:
        while True:
            own = torch.Generator().manual_seed(1000 * self.rank + self.position)
            words = torch.randint(WORDS, (LENGTH + 1,), generator=own)
            drawn = torch.randint(WORDS, (LENGTH + 1,))
            both = torch.where(torch.arange(LENGTH + 1) % 2 == 0, words, drawn)
            self.position += 1
            yield {"input": both[:-1]}, both[1:]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        super().__init__(Tokens(dp_rank), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return WORDS


class Trainer(TitanTrainer):
    """torchtitan's, whose losses are noted."""

    @dataclass(kw_only=True, slots=True)
    class Config(TitanTrainer.Config):
        run: Any = field(default=None)

    def train_step(self, data_iterator: Any) -> None:
        self.config.run.stepped(self.step - 1)
        super().train_step(data_iterator)

    def forward_backward_step(self, **given: Any) -> Any:
        loss = super().forward_backward_step(**given)
        self.config.run.note([self.step, loss.item().hex()])
        return loss


class Model(BaseModel):
    """Of torchtitan's modules, with dropout, for which each rank draws its own numbers."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        def update_from_config(self, *, config: Any, **_: Any) -> None:
            pass

        def get_nparams_and_flops(self, model: Any, seq_len: int) -> tuple[int, int]:
            return sum(each.numel() for each in model.parameters()), 1

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = Embedding.Config(num_embeddings=WORDS, embedding_dim=8, param_init={"weight": _draw}).build()
        self.head = Linear.Config(in_features=8, out_features=WORDS, param_init={"weight": _draw}).build()

    def forward(self, tokens: Any) -> Any:
        return self.head(torch.nn.functional.dropout(self.words(tokens), 0.3))


def _draw(weight: Any) -> None:
    torch.nn.init.normal_(weight, std=0.5)


def sharded(model: Any, *, parallel_dims: Any, **_: Any) -> Any:
    return fully_shard(model, mesh=parallel_dims.get_mesh("fsdp"))


def config(run: Run, steps: int = STEPS, **checkpoint: Any) -> Any:
    settings: dict[str, Any] = {"enable": True, "interval": EVERY, "folder": "ckpt", "last_save_model_only": False}
    return Trainer.Config(
        model_spec=ModelSpec(
            name="small",
            flavor="small",
            model=Model.Config(),
            parallelize_fn=sharded,
            pipelining_fn=None,
            post_optimizer_build_fn=None,
            state_dict_adapter=None,
        ),
        run=run,
        dump_folder=str(run.folder),
        tokenizer=NoTokenizer.Config(),
        dataloader=Loader.Config(),
        optimizer=default_adamw(lr=0.01),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=3),
        training=TrainingConfig(local_batch_size=2, seq_len=LENGTH, steps=steps, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        debug=DebugConfig(seed=5),
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        metrics=MetricsProcessor.Config(log_freq=10),
        checkpoint=CheckpointManager.Config(**settings | checkpoint),
    )


def in_a_job(run: Run) -> None:
    """torchtitan takes one process, too, for a job of torchrun's."""
    if run.ranks == 1:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = str(free_port())


def train(run: Run) -> Weights:
    in_a_job(run)
    trainer = config(run).build()
    weights = trained(trainer, run.rank)
    torch.distributed.destroy_process_group()
    return weights


def trained(trainer: Any, rank: int = 0) -> Weights:
    torch.manual_seed(100 + rank)
    trainer.train()
    trainer.close()
    return weights_of(trainer)


def weights_of(trainer: Any) -> Weights:
    return {name: value.full_tensor() for name, value in trainer.model_parts[0].state_dict().items()}


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def refusals(top: Path) -> list[str]:
    """What else is to be seen in one process, and what the manager says to options that it does not take."""
    in_a_job(Run(top, 0, 1, None, 0))
    whole = [torch.load(top / f"whole-{ranks}" / "weights") for ranks in (1, 2)]
    alone = config(Run(top, 0, 1, None, 0), enable=False).build()
    own_generator(alone.dataloader)
    assert same(trained(alone), whole[0]), "a manager changes training"
    _exported(top)
    return [*_on_one_rank(Run(top / "whole-2", 0, 1, None, 0), whole[1]), *_refused(Run(top / "none", 0, 1, None, 0))]


def _exported(top: Path) -> None:
    """torchtitan writes the model of the last step by itself, and begins with it; the training can go on, too."""
    run, other = (Run(top / name, 0, 1, None, 0) for name in ("exported", "begun"))
    weights = trained(config(run, steps=2, last_save_model_only=True).build())
    longer = trained(config(run, steps=6, interval=1, keep_latest_k=2).build())
    assert not same(weights, longer) and len(list(run.folder.glob("ckpt/step-*/manifest"))) == 2
    there = str(run.folder / "ckpt-export" / "step-2")
    others = [
        "rng",
        "optimizer",
        "dataloader",
        "lr_scheduler",
        "train_state",
    ]  # of which torchtitan does not know the first
    parts: dict[str, Any] = {"initial_load_model_only": False, "exclude_from_loading": others}
    for options in (parts, dict[str, Any]()):
        begun = config(other, initial_load_path=there, **options).build()
        assert begun.checkpointer.load() and same(weights_of(begun), weights) and begun.step == 0
        begun.close()
    begun = config(other, initial_load_path=there).build()
    assert begun.checkpointer.load() and same(weights_of(begun), weights) and begun.step == 0
    assert not begun.checkpointer.save(1) and begun.checkpointer.save(EVERY)
    begun.checkpointer.maybe_wait_for_saving()
    assert begun.checkpointer.save_future is None and len(list(other.folder.glob("ckpt/step-*/manifest"))) == 1
    begun.close()


def _on_one_rank(run: Run, expected: Weights) -> list[str]:
    """What two ranks saved: data positions are asked about; then one rank has it, with generators as it asks."""
    found: list[str] = []
    asked: dict[str, Any] = {"exclude_from_loading": ["dataloader"], "per_rank": {"rng/*": "strict"}}
    options: dict[str, Any]
    for options in (dict[str, Any](), asked):
        trainer = config(run, **options).build()
        before = weights_of(trainer)
        try:
            trainer.checkpointer.load()
        except DeeppartError as error:
            found.append(str(error))
        assert same(weights_of(trainer), before), "a load that was refused changed weights"
        trainer.close()
    for options in (
        {"exclude_from_loading": ["dataloader"], "per_rank": {"*": "rank0"}},
        {"exclude_from_loading": ["dataloader"]},
        {"exclude_from_loading": ["dataloader", "rng"]},
    ):
        trainer = config(run, **options).build()
        drawn = torch.get_rng_state()
        assert trainer.checkpointer.load() and trainer.step == STEPS and same(weights_of(trainer), expected)
        assert torch.equal(torch.get_rng_state(), drawn) == ("per_rank" not in options)
        trainer.close()
    return found


def _refused(run: Run) -> list[str]:
    found = []
    for options in (
        {"create_seed_checkpoint": True},
        {"exclude_from_loading": ["optimiser"]},
        {"folder": "s3://x/y"},
        {"initial_load_path": str(run.folder.parent / "whole-1" / "ckpt")},
        {"load_step": 7},
    ):
        try:
            trainer = config(run, **options).build()
            trainer.checkpointer.load(7)
        except DeeppartError as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    main(train, refusals, sigterm=False)
