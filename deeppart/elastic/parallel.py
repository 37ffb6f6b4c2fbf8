"""DistributedDataParallel for batch sizes that change."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from deeppart.errors import ConfigError

from .epochs import Progress, progress
from .gradient_norms import DelayedNumbers, GradientNorms, PendingNorms, ReducedStep
from .noise import NoiseScale
from .rules import AdamScale, AdaScale, ScalingRule

#: Optimizers that divide gradients by the root of their second moments.
ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


class ElasticDataParallel(DistributedDataParallel):
    """DistributedDataParallel for uneven batches, with a learning rate that follows the batch size.

    In a loop over an :class:`deeppart.elastic.ElasticDataLoader` gradients are means over the samples of the step,
    however they are divided. Their noise scale is measured while they are reduced, for one more reduction of a few
    numbers. During ``optimizer.step()`` the learning rate is multiplied by the factor of the rule.

    A step uses the estimate of the previous step. Save it with :data:`deeppart.elastic.progress`, or save
    :meth:`state`.

    Args:
        model: on its device.
        optimizer: of the model's parameters.
        scheduler: of the optimizer; only for :meth:`state`.
        rule: by default :class:`AdamScale` for Adam, AdamW and RMSprop, else :class:`AdaScale`.
        scaler: the ``torch.amp.GradScaler``, if one is used.
        name: in checkpoints; by default numbered in order of creation.
        progress: of the training; by default that of the process.
        **options: of DistributedDataParallel.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from deeppart.elastic import ElasticDataParallel, Progress
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> net = torch.nn.Linear(4, 1)
        >>> model = ElasticDataParallel(net, torch.optim.AdamW(net.parameters()), progress=Progress())
        >>> type(model.rule).__name__, sorted(model.state())
        ('AdamScale', ['elastic', 'model', 'optimizer'])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        rule: ScalingRule | None = None,
        *,
        scaler: Any = None,
        name: str | None = None,
        progress: Progress = progress,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        is_adam = isinstance(optimizer, ADAMS)
        self.rule: ScalingRule = rule if rule is not None else AdamScale() if is_adam else AdaScale()
        self._optimizer, self._scheduler, self._scaler, self._progress = optimizer, scheduler, scaler, progress
        preconditioned = isinstance(self.rule, AdamScale) and is_adam
        self._norms = GradientNorms(optimizer, self.process_group, preconditioned=preconditioned)
        self.noise = NoiseScale(self._norms.groups)
        self._frozen = [each for each in model.parameters() if not each.requires_grad]
        self._effective_steps = 0.0
        self._base: int | None = None
        self._pending: PendingNorms | None = None
        #: The gain and parameters of the last step until it is counted, and whether it was skipped: a fused optimizer
        #: detects infinite gradients on the GPU.
        self._last_step: tuple[float, list[torch.Tensor]] | None = None
        self._skipped: DelayedNumbers | None = None
        #: Within :meth:`no_sync`; and whether gradients were accumulated there since the last step.
        self._unsynced = self._accumulated_by_hand = False
        #: For each parameter group, the learning rate and the scaled one of the current step.
        self._rates: list[tuple[Any, Any]] | None = None
        #: Batch size relative to that at the beginning of the training; a partial last step counts as a full one.
        self.scale = 1.0
        # DDP hides the hook's state from the garbage collector, and it refers to the optimizer and so to the model.
        self.register_comm_hook(weakref.ref(self._norms), _hook)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_pre_hook(self._restore_rates)  # after a step that failed
        self.name = progress.name_for("parallel", name)
        progress.join(self.name, self._ScalingState(self), stays=True)
        progress.trained = self

    @property
    def effective_steps(self) -> float:
        """The training so far in steps at scale 1, the sum of the gains."""
        self._count_last_step()
        return self._effective_steps

    @property
    def gain(self) -> float:
        """Number of steps at scale 1 that the last step was worth."""
        return self.noise.gain(self.scale)

    def state(self) -> dict[str, Any]:
        """The state to save: model, optimizer, scheduler, scaler and progress."""
        found = {"model": self.module, "optimizer": self._optimizer, "elastic": self._progress}
        if self._scheduler is not None:
            found["scheduler"] = self._scheduler
        if self._scaler is not None:
            found["scaler"] = self._scaler
        return found

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without reducing them, as DistributedDataParallel does.

        The noise of the next step is not measured. Not needed with ``accumulation`` of the loader.
        """
        before, self._unsynced = self._unsynced, True
        try:
            with super().no_sync():
                yield
        finally:
            self._unsynced = before

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module; gradients of its outputs are weighted by the number of samples."""
        loader = self._progress.loader
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        self.require_backward_grad_sync = not self._unsynced and (loader is None or loader.ends_step)
        if loader is None:
            self._norms.forget()
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        if self._unsynced or self._adds_to_reduced():
            self._accumulated_by_hand = True
        if loader.ends_step and not self._unsynced:
            scaler = self._scaler
            loss_scale = None if scaler is None else scaler.scale(torch.ones((), device=self._device))
            measured = not self._accumulated_by_hand
            self._norms.next_step = ReducedStep.of(loader, loss_scale=loss_scale, measured=measured)
        output = super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        return _weighted(output, loader.weight, required=self.training)

    def _adds_to_reduced(self) -> bool:
        """Whether gradients are added to reduced ones that the optimizer has not used."""
        return self._norms.step is not None and any(each.grad is not None for each in self.module.parameters())

    def _before_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        loader = self._progress.loader
        if loader is not None and not loader.ends_step:
            raise ConfigError(
                "the optimizer makes a step while gradients are accumulated",
                expected="optimizer.step() after the last batch of a step",
                todo="call it, and zero_grad(), only if loader.ends_step",
            )
        self._restore_rates()  # if the previous step failed
        self._update_noise()
        has_closure = named.get("closure") is not None or any(callable(each) for each in arguments[1:])
        step = ReducedStep.of(loader) if has_closure and loader is not None else self._norms.step
        if step is None:
            return
        self._check_unchanged()
        if (
            self._base is not None and self._base != step.base
        ):  # another loader, or a changed batch_size after a restart
            ratio = step.base / self._base
            self._effective_steps /= self.noise.gain(ratio)
            self.noise.rebase(ratio)
        self._base, self.scale = step.base, step.scale
        if not has_closure:
            self._pending = self._norms.finish(self._device)
        found_inf = getattr(optimizer, "found_inf", None)
        self._skipped = None if found_inf is None else DelayedNumbers(found_inf)
        groups = self._optimizer.param_groups
        factors = self.rule.factors(self.scale, self.noise, self._effective_steps)
        self._rates = [(group["lr"], group["lr"] * factor) for group, factor in zip(groups, factors, strict=True)]
        for group, (_, rate) in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def _check_unchanged(self) -> None:
        groups = self._optimizer.param_groups
        if len(groups) != self._norms.groups:
            raise ConfigError(
                "parameter groups were added to the optimizer after the model was wrapped",
                expected=f"{self._norms.groups} groups",
                found=str(len(groups)),
                todo="add all groups before ElasticDataParallel(model, optimizer), with a rate of 0 until they train",
            )
        if any(each.requires_grad for each in self._frozen):
            raise ConfigError(
                "parameters that were frozen when the model was wrapped require gradients now",
                expected="requires_grad=False, since DistributedDataParallel does not reduce their gradients",
                todo="wrap the model again: ElasticDataParallel(model, optimizer)",
            )

    def _after_step(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        gain = 0.0
        if self._rates is not None:
            self._restore_rates()
            self._rates = None
            gain = self.gain
            if self._norms.step is not None:  # a closure computed the gradients within the step
                self._pending = self._norms.finish(self._device)
        self._accumulated_by_hand = False
        self._last_step = gain, self._norms.stepped_parameters()
        if self._skipped is None:
            self._count_last_step()

    def _restore_rates(self, *_: Any) -> None:
        """Undo the scaling of learning rates, except where a checkpoint was loaded since."""
        for group, (rate, scaled) in zip(self._optimizer.param_groups, self._rates or (), strict=False):
            if group["lr"] is scaled:
                group["lr"] = rate

    @property
    def _device(self) -> torch.device:
        found: torch.device = next(self.module.parameters()).device
        return found

    def _count_last_step(self) -> None:
        """Count the last step unless the optimizer skipped it."""
        last, skipped = self._last_step, self._skipped
        self._last_step = self._skipped = None
        if last is not None and not (skipped is not None and any(skipped.numbers())):
            self._effective_steps += last[0]
            self._norms.count_steps(last[1])

    def _update_noise(self) -> None:
        """Add the norms of the last step to the estimate."""
        self._count_last_step()
        if self._pending is not None:
            norms, self._pending = self._pending.norms(), None
            self.noise.update(norms)

    class _ScalingState:
        """The saved state of the scaling; ``state_dict`` of the wrapper itself is the module's."""

        def __init__(self, owner: ElasticDataParallel) -> None:
            self._owner = owner

        def state_dict(self) -> dict[str, Any]:
            owner = self._owner
            owner._update_noise()
            return {"noise": owner.noise.state_dict(), "worth": owner._effective_steps, "base": owner._base}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            owner = self._owner
            owner.noise.load_state_dict(state["noise"])
            owner._effective_steps, owner._base = state["worth"], state.get("base")
            owner._pending = owner._last_step = owner._skipped = None
            owner._norms.restored()


def _hook(norms: weakref.ReferenceType[GradientNorms], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    alive = norms()
    assert alive is not None, "the model keeps it"
    return alive.hook(bucket)


# DistributedDataParallel compares annotations, which are strings in this module.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


class _Weighted(torch.autograd.Function):
    """The identity, with gradients multiplied by a number."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, weight: float) -> torch.Tensor:
        context.weight = weight
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.weight, None


def _weighted(output: Any, weight: float, *, required: bool) -> Any:
    """Multiply the gradients of all tensors in a model's output by ``weight``."""
    if weight == 1.0:
        return output
    leaves, structure = tree_flatten(output)
    trained = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
    if not any(trained) and not required:
        return output
    if not any(trained):
        raise ConfigError(
            "the gradients of the model's output cannot be weighted",
            expected="tensors that require gradients, in tuples, lists, dicts or registered containers",
            found=type(output).__name__,
            todo="return such a container, or register yours with torch.utils._pytree.register_pytree_node",
        )
    weigh: Any = _Weighted.apply
    changed = [weigh(leaf, weight) if one else leaf for leaf, one in zip(leaves, trained, strict=True)]
    return tree_unflatten(changed, structure)
