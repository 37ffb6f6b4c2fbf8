"""DistributedDataParallel for batches that change."""

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

from .gradient_norms import DelayedNumbers, ExchangedStep, GradientNorms, PendingNorms
from .noise import NoiseScale
from .progress import Progress, progress
from .rules import AdamScale, AdaScale, ScalingRule

#: Optimizers that divide gradients by the root of their second moments.
ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


class ElasticDataParallel(DistributedDataParallel):
    """DistributedDataParallel whose ranks may have different numbers of samples, and whose learning rate follows them.

    In a loop over an :class:`deeppart.elastic.ElasticDataLoader` gradients are means over the samples of the step,
    however they are divided. While they are exchanged, their noise is measured, at the cost of one more reduction of a
    few numbers. In ``optimizer.step()`` the learning rate is multiplied by what the rule says, and put back.

    The estimate that a step uses is the one after the step before. It belongs to the checkpoint, with
    :data:`deeppart.elastic.progress`; or take :meth:`state`.

    Args:
        model: on its device.
        optimizer: of the model's parameters.
        scheduler: of the optimizer; only for :meth:`state`.
        rule: by default :class:`AdamScale` for Adam, AdamW and RMSprop, else :class:`AdaScale`.
        scaler: a ``torch.amp.GradScaler``, if one is used.
        name: in a checkpoint; by default by the order in which they are made.
        progress: of the training; by default the process's.
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
        self._worth = 0.0
        self._base: int | None = None
        self._measured: PendingNorms | None = None
        #: Of the step before, until it is counted: its gain, and what it has moved. Fused optimizers find out on a GPU
        #: whether a loss scale was too large, and make no step then.
        self._made: tuple[float, list[torch.Tensor]] | None = None
        self._skipped: DelayedNumbers | None = None
        #: Within :meth:`no_sync`; and whether gradients were accumulated there since the last step.
        self._unsynced = self._by_hand = False
        #: Of each group the rate, and the one that the step under way has.
        self._rates: list[tuple[Any, Any]] | None = None
        self._scale = 1.0
        # What is kept there is out of the garbage collector's sight, and norms know the optimizer, and so the model.
        self.register_comm_hook(weakref.ref(self._norms), _exchange)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_pre_hook(self._put_back)  # after a step that failed, or was interrupted
        self.name = progress.name_for("parallel", name)
        progress.join(self.name, self._ScalingState(self))
        progress.trained = self

    @property
    def worth(self) -> float:
        """Steps at scale 1 that the training so far is worth, the sum of the gains."""
        self._take_in_step()
        return self._worth

    @property
    def gain(self) -> float:
        """Steps at scale 1 that the last step was worth."""
        return self.noise.gain(self._scale)

    @property
    def scale(self) -> float:
        """Samples of a step, by those of a step as the training began; the last one of an epoch counts as a whole."""
        return self._scale

    def state(self) -> dict[str, Any]:
        """What to save: the model, the optimizer, the scheduler, and the progress of the training."""
        found = {"model": self.module, "optimizer": self._optimizer, "elastic": self._progress}
        if self._scheduler is not None:
            found["scheduler"] = self._scheduler
        if self._scaler is not None:
            found["scaler"] = self._scaler
        return found

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As of DistributedDataParallel: gradients are accumulated on this rank, and not exchanged.

        The noise of the next step is not measured then. ``accumulation`` of the loader needs none of this.
        """
        before, self._unsynced = self._unsynced, True
        try:
            with super().no_sync():
                yield
        finally:
            self._unsynced = before

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """As of DistributedDataParallel; gradients of what it returns are weighted by the batch's samples."""
        loader = self._progress.loader
        if not torch.is_grad_enabled():
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        self.require_backward_grad_sync = not self._unsynced and (loader is None or loader.ends_step)
        if loader is None:
            self._norms.forget()
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        if self._unsynced or self._adds_to_exchanged():
            self._by_hand = True
        if loader.ends_step and not self._unsynced:
            self._norms.coming = ExchangedStep.of(loader, loss_scale=self._loss_scale(), measured=not self._by_hand)
        output = super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        return _weighted(output, loader.weight, needed=self.training)

    def _adds_to_exchanged(self) -> bool:
        """Gradients that come are added to such as were exchanged before, of which the optimizer has made no step."""
        return self._norms.step is not None and any(each.grad is not None for each in self.module.parameters())

    def _loss_scale(self) -> torch.Tensor | None:
        if self._scaler is None:
            return None
        found: torch.Tensor = self._scaler.scale(torch.ones((), device=self._device))
        return found

    def _before_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        loader = self._progress.loader
        if loader is not None and not loader.ends_step:
            raise ConfigError(
                "the optimizer makes a step while gradients are accumulated",
                expected="optimizer.step() after the last batch of a step",
                todo="call it, and zero_grad(), only if loader.ends_step",
            )
        self._put_back()  # if the step before failed
        self._take_in()
        has_closure = named.get("closure") is not None or any(callable(each) for each in arguments[1:])
        step = ExchangedStep.of(loader) if has_closure and loader is not None else self._norms.step
        if step is None:
            return
        self._refuse_changes()
        if self._base is not None and self._base != step.base:  # another loader, or another batch than the checkpoint's
            ratio = step.base / self._base
            self._worth /= self.noise.gain(ratio)
            self.noise.rebase(ratio)
        self._base, self._scale = step.base, step.scale
        if not has_closure:
            self._measured = self._norms.finish(self._device)
        found_inf = getattr(optimizer, "found_inf", None)
        self._skipped = None if found_inf is None else DelayedNumbers(found_inf)
        groups, factors = self._optimizer.param_groups, self.rule.factors(self._scale, self.noise, self._worth)
        self._rates = [(group["lr"], group["lr"] * factor) for group, factor in zip(groups, factors, strict=True)]
        for group, (_, rate) in zip(groups, self._rates, strict=True):
            group["lr"] = rate

    def _refuse_changes(self) -> None:
        groups = self._optimizer.param_groups
        if len(groups) != self._norms.groups:
            raise ConfigError(
                "the optimizer has got groups of parameters since the model was wrapped",
                expected=f"{self._norms.groups} groups",
                found=str(len(groups)),
                todo="add all groups before ElasticDataParallel(model, optimizer), with a rate of 0 until they train",
            )
        if any(each.requires_grad for each in self._frozen):
            raise ConfigError(
                "parameters that were frozen when the model was wrapped are trained now",
                expected="requires_grad=False, as then: their gradients would not be exchanged",
                todo="wrap the model anew: ElasticDataParallel(model, optimizer)",
            )

    def _after_step(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        gain = 0.0
        if self._rates is not None:
            self._put_back()
            self._rates = None
            gain = self.gain
            if self._norms.step is not None:  # gradients of a closure, which was called within the step
                self._measured = self._norms.finish(self._device)
        self._by_hand = False
        self._made = gain, self._norms.moved()
        if self._skipped is None:
            self._take_in_step()

    def _put_back(self, *_: Any) -> None:
        """Rates of the step under way, or of one that failed: where no checkpoint was restored since."""
        for group, (rate, of_step) in zip(self._optimizer.param_groups, self._rates or (), strict=False):
            if group["lr"] is of_step:
                group["lr"] = rate

    @property
    def _device(self) -> torch.device:
        found: torch.device = next(self.module.parameters()).device
        return found

    def _take_in_step(self) -> None:
        """Count the step before, if the optimizer has made it."""
        made, skipped = self._made, self._skipped
        self._made = self._skipped = None
        if made is not None and not (skipped is not None and any(skipped.numbers())):
            self._worth += made[0]
            self._norms.stepped(made[1])

    def _take_in(self) -> None:
        """Use the norms of the step before."""
        self._take_in_step()
        if self._measured is not None:
            norms, of_two_steps = self._measured.norms()
            self._measured = None
            self.noise.update(norms, of_two_steps=of_two_steps)

    class _ScalingState:
        """What a checkpoint has of it, beside the module: that has a ``state_dict`` of its own."""

        def __init__(self, owner: ElasticDataParallel) -> None:
            self._owner = owner

        def state_dict(self) -> dict[str, Any]:
            self._owner._take_in()
            owner = self._owner
            return {"noise": owner.noise.state_dict(), "worth": owner._worth, "base": owner._base}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            owner = self._owner
            owner.noise.load_state_dict(state["noise"])
            owner._worth, owner._base = state["worth"], state.get("base")
            owner._measured = owner._made = owner._skipped = None
            # Any number that is the same on all ranks, and that later sessions do not begin with again.
            owner._norms.restored(int(owner._worth))


def _exchange(
    norms: weakref.ReferenceType[GradientNorms], bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    alive = norms()
    assert alive is not None, "the model has them"
    return alive.hook(bucket)


# DistributedDataParallel looks at the annotations themselves, which are texts here.
_exchange.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


class _Weighted(torch.autograd.Function):
    """The same values, whose gradients are multiplied by a number."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, weight: float) -> torch.Tensor:
        context.weight = weight
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.weight, None


def _weighted(output: Any, weight: float, *, needed: bool) -> Any:
    if weight == 1.0:
        return output
    leaves, structure = tree_flatten(output)
    trained = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
    if not any(trained) and not needed:
        return output
    if not any(trained):
        raise ConfigError(
            "the gradients of what the model returns cannot be weighted",
            expected="tensors that need gradients, in tuples, lists, dicts or registered containers",
            found=type(output).__name__,
            todo="return such a container, or register yours with torch.utils._pytree.register_pytree_node",
        )
    weigh: Any = _Weighted.apply
    changed = [weigh(leaf, weight) if one else leaf for leaf, one in zip(leaves, trained, strict=True)]
    return tree_unflatten(changed, structure)
