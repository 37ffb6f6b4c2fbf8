"""A training with Megatron-core's layers under tensor parallelism, for test_megatron.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torchdata.stateful_dataloader import StatefulDataLoader

import deeppart
from deeppart.errors import DeeppartError
from deeppart.interop.megatron import load, save
from deeppart.interop.training_state import own_generator, position, rng_state, seek, set_rng_state
from tests.ports import free_port
from tests.unit.interop.trainer_runs import EVERY, STEPS, Data, Run, Weights, main

LAYERS, WIDTH = 2, 4
LAST = STEPS // EVERY * EVERY


class Net(torch.nn.Module):
    """Gated feed-forward layers, which Megatron-core saves as one tensor with an axis of layers, by factories."""

    def __init__(self) -> None:
        super().__init__()
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=WIDTH,
            num_attention_heads=2,
            ffn_hidden_size=8,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            add_bias_linear=False,
            use_cpu_initialization=True,
            tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        )
        parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        self.layers: Any = torch.nn.ModuleList(MLP(config, parts) for _ in range(LAYERS))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + torch.nn.functional.dropout(layer(x)[0], 0.2)  # the same numbers on ranks of one tensor
        return x.sum(-1, keepdim=True)

    def sharded_state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        groups = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
        for place, layer in enumerate(self.layers):
            of_layer = layer.sharded_state_dict("layers.", ((0, place, LAYERS),), groups)
            found |= {f"layers.{place}.{name[len('layers.') :]}": each for name, each in of_layer.items()}
        return found


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.loader = StatefulDataLoader(Data(), batch_size=2, shuffle=True)
        own_generator(self.loader)
        self.step, self.epoch = 0, 0

    def sharded_state_dict(self, *, loading: bool = False) -> dict[str, Any]:
        model, optimizer = self.model.sharded_state_dict(), self.optimizer.state_dict()
        if loading and not optimizer["state"]:
            optimizer["state"] = {
                at: {"step": torch.zeros(()), "exp_avg": torch.zeros_like(each), "exp_avg_sq": torch.zeros_like(each)}
                for at, each in enumerate(self.model.parameters())
            }
        steps = {at: each["step"] for at, each in optimizer["state"].items()}
        of_parameters = get_param_id_to_sharded_param_map(model, self.model.parameters())
        optim_state_to_sharding_state(optimizer, of_parameters, exclude_keys=("step",))
        here = parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
        replica = {"replica_id": here[1]}
        loops = {"loader": None if loading else position(self.loader), "rng": None if loading else rng_state()}
        return {
            "model": model,
            "optimizer": optimizer,
            "steps": {} if loading else steps,
            "scheduler": {} if loading else self.scheduler.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "loops": ShardedObject("loops", loops, (1,), (here[0],), **replica),
            "mine": LocalNonpersistentObject(here),
        }

    def tensors(self) -> dict[str, Any]:
        """Copies of weights and moments."""
        found: dict[str, Any] = {}
        for name, weight in self.model.named_parameters():
            of_weight = {"": weight, **{key: self.optimizer.state[weight][key] for key in ("exp_avg", "exp_avg_sq")}}
            found |= {f"{name} {key}": each.detach().clone() for key, each in of_weight.items()}
        return found

    def load(self, found: Any) -> None:
        self.model.load_state_dict({n: v for n, v in found["model"].items() if "_extra_state" not in n}, strict=False)
        for at, step in found["steps"].items():
            found["optimizer"]["state"][at]["step"] = step
        self.optimizer.load_state_dict(found["optimizer"])
        self.scheduler.load_state_dict(found["scheduler"])
        self.step, self.epoch = found["step"], found["epoch"]
        seek(self.loader, found["loops"]["loader"])
        set_rng_state(found["loops"]["rng"])


def parallel(ranks: int) -> None:
    if ranks == 1:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)


def train(run: Run) -> Weights:
    parallel(run.ranks)
    training = Training()
    torch.manual_seed(100)
    with deeppart.Checkpointer(run.config) as checkpointer:
        if (found := load(checkpointer, training.sharded_state_dict(loading=True))) is not None:
            training.load(found.state_dict)
            assert found.step == training.step and found.state_dict["mine"] == (0, run.rank)
        while training.step < STEPS:
            for x, y in training.loader:
                run.stepped(training.step)
                loss = ((training.model(x) - y) ** 2).mean()
                training.optimizer.zero_grad()
                loss.backward()
                training.optimizer.step()
                training.scheduler.step()
                training.step += 1
                run.note([training.step, training.epoch, loss.item().hex()])
                if training.step == LAST:
                    torch.save(training.tensors(), run.folder / f"last-{run.rank}")
                if training.step % EVERY == 0:
                    save(checkpointer, training.sharded_state_dict(), training.step)
                if training.step == STEPS:
                    break
            training.epoch += 1
    weights = {name: value.detach().clone() for name, value in training.model.named_parameters()}
    torch.distributed.destroy_process_group()
    return weights


def refusals(top: Path) -> list[str]:
    """One rank takes up what two had, and another model is refused, its tensors unchanged."""
    parallel(1)
    found = [_taken_up_by_one(top)]
    other = Training()
    for layer in other.model.layers:
        layer.linear_fc2.weight = torch.nn.Parameter(torch.full((WIDTH + 1, 8), 7.0))
    with deeppart.Checkpointer(Run(top / "whole-2", 0, 1, None, 0).config) as checkpointer:
        try:
            load(checkpointer, other.sharded_state_dict(loading=True))
        except DeeppartError as error:
            found.append(str(error))
    assert all(torch.equal(layer.linear_fc2.weight, torch.full((WIDTH + 1, 8), 7.0)) for layer in other.model.layers)
    return found


def _taken_up_by_one(top: Path) -> str:
    """Weights and moments are made of what both ranks had, and the run goes on."""
    training = Training()
    with deeppart.Checkpointer(Run(top / "whole-2", 0, 1, None, 0).config) as checkpointer:
        found = load(checkpointer, training.sharded_state_dict(loading=True))
    assert found is not None and found.step == LAST
    training.load(found.state_dict)
    halves = [torch.load(top / "whole-2" / f"last-{rank}") for rank in range(2)]
    for name, tensor in training.tensors().items():
        one, other = (half[name] for half in halves)
        if "linear_fc1" in name:  # of each rank, half of the gate and half of what it opens for
            pairs = zip(one.chunk(2), other.chunk(2), strict=True)
            expected = torch.cat([part for pair in pairs for part in pair])
        else:
            expected = torch.cat([one, other], 1)
        assert torch.equal(tensor, expected), name
    assert {float(each["step"]) for each in training.optimizer.state.values()} == {LAST}
    return f"step {training.step} of two ranks on one"


if __name__ == "__main__":
    main(train, refusals, sigterm=False)
