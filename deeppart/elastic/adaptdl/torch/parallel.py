"""DistributedDataParallel whose batch, learning rate and number of replicas may change."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from deeppart.elastic.parallel import ADAMS
from deeppart.errors import DeeppartWarning, warn_caller

from .. import env
from ..checkpoint import TreeState, load_state
from ._metrics import profile_sync_time, update_grad_params, update_progress
from .gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from .loops import current_dataloader
from .scaling_rules import AdamScale, AdaScale, ScalingRuleBase


class AdaptiveDataParallel(DistributedDataParallel):
    """A model that is saved and comes back with its optimizer, and whose learning rate follows the batch."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: ScalingRuleBase | None = None,
        name: str = "adaptdl-dataparallel",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self._name = name
        # Hooks on parameters are called before DistributedDataParallel's, which exchange what they have seen.
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._has_gradient)
        is_adam = isinstance(optimizer, ADAMS)
        self.scaling_rule = scaling_rule or (AdamScale() if is_adam else AdaScale())
        preconditioned = is_adam and isinstance(self.scaling_rule, AdamScale)
        noise_scale = AdamGradientNoiseScale if preconditioned else GradientNoiseScale
        self.gns = noise_scale(self, optimizer, mp_scaler=mp_scaler)
        self.scaling_rule.initialize(self, optimizer, patch_optimizer=True)
        self._state = _ModelState(name, model, optimizer, lr_scheduler, mp_scaler)
        load_state(self._state)
        self._computed: Any = None
        self._queued = False

    @property
    def gain(self) -> float:
        """Steps with the first batch that the last step was worth."""
        return self._state.gain

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As of DistributedDataParallel; gradients are exchanged in the last micro-batch of a step."""
        loader = current_dataloader()
        # Which loader trains is known from the first backward pass on.
        if loader is not None and loader.may_train and self.training and torch.is_grad_enabled():
            self.require_backward_grad_sync = loader.is_optim_step()
            self.gns.set_accum_scale(loader.current_local_bsz * env.num_replicas() / loader.batch_size)
        elif loader is None and self.training and torch.is_grad_enabled():
            self._train_plainly()
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def _train_plainly(self) -> None:
        """Outside of loops nobody says how many samples a step has: the rate is as it was given."""
        warn_caller(
            "a model is trained outside of a loop over an AdaptiveDataLoader: its learning rate is not scaled, and its "
            "place in the data is not saved",
            DeeppartWarning,
        )
        self.require_backward_grad_sync = True
        self.gns.set_accum_scale(1.0)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the optimizer's does it, where it is right."""

    def _has_gradient(self, gradient: torch.Tensor) -> None:
        """The last gradient of this replica is computed about when this is called last."""
        if gradient.is_cuda:
            self._computed = torch.cuda.Event(enable_timing=True)
            self._computed.record()
        else:
            self._computed = time.perf_counter()
        if not self._queued:
            self._queued = True
            # A callback that another one queues comes after those that were queued before: after the exchange.
            later = functools.partial(_queue, self._after_exchange)
            _queue(later)

    def _after_exchange(self) -> None:
        """The backward pass is over; without an exchange, too."""
        self._queued = False
        loader = current_dataloader()
        if loader is None:
            return
        profile_sync_time(self._since_computed_s())
        loader.train()
        scale = loader.current_batch_size / loader.batch_size
        self._state.gain = self.gns.gain(scale)
        self._state.lr_factor = float(np.average(self.scaling_rule.scale_lr(scale)))
        update_progress(self.gns.get_progress())
        if loader.max_batch_size is not None and loader.max_batch_size > loader.batch_size:
            update_grad_params(self._name, self.gns.sqr_avg(), self.gns.var_avg())

    def _since_computed_s(self) -> float:
        if isinstance(self._computed, float):
            return time.perf_counter() - self._computed
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        now.synchronize()
        return float(self._computed.elapsed_time(now)) / 1e3

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the noise of gradients, the gain and the progress to a ``SummaryWriter``."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else f"{tag_prefix}/"
        values = {
            "Gradient_Norm_Sqr": self.gns.sqr_avg(),
            "Gradient_Variance": self.gns.var_avg(),
            "Gain": self._state.gain,
            "Learning_Rate_Factor": self._state.lr_factor,
            "Accum_Scale": self.gns.accum_scale,
            "Accum_Count": self.gns.accum_count,
            "Progress": self.gns.get_progress(),
        }
        for name, value in values.items():
            writer.add_scalar(f"{prefix}{name}", value, global_step)


def _queue(callback: Any) -> None:
    """Call it when the backward pass that is under way is over."""
    Variable._execution_engine.queue_callback(callback)


class _ModelState(TreeState):
    """A model, its optimizer, and what goes with them."""

    def __init__(self, name: str, model: torch.nn.Module, optimizer: Any, lr_scheduler: Any, mp_scaler: Any) -> None:
        super().__init__(name)
        self._model, self._optimizer = model, optimizer
        others = {"lr_scheduler": lr_scheduler, "mp_scaler": mp_scaler}
        self._others = {key: each for key, each in others.items() if each is not None}
        self.gain = self.lr_factor = 1.0

    def tree(self) -> dict[str, Any]:
        saved = self._model.state_dict()
        trained = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        return {
            "model": {name: value for name, value in saved.items() if name in trained},
            "buffers": {name: value for name, value in saved.items() if name not in trained},
            "optimizer": self._optimizer.state_dict(),
            "others": {key: each.state_dict() for key, each in self._others.items()},
            "summary": {"gain": self.gain, "lr_factor": self.lr_factor},
        }

    def load_tree(self, tree: Mapping[str, Any]) -> None:
        self._model.load_state_dict({**tree["model"], **tree["buffers"]})
        self._optimizer.load_state_dict(tree["optimizer"])
        for key, each in self._others.items():
            if key in tree["others"]:
                each.load_state_dict(tree["others"][key])
        self.gain, self.lr_factor = tree["summary"]["gain"], tree["summary"]["lr_factor"]
