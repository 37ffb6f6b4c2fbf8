"""Norms of gradients, of each rank's own and of their mean, taken while DistributedDataParallel exchanges them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .noise import Norms, of_two_steps
from .progress import Working

#: Adam's second moments say little before so many steps.
_LEAST_ADAM_STEPS = 5
#: Elements that are worked on at a time on a CPU: they stay in its cache.
_AT_A_TIME = 1 << 16


@dataclass(frozen=True, slots=True)
class Measured:
    """The norms of a step, on their way.

    Attributes:
        values: float64[2 or 3 x groups]; as of :class:`Norms`, or of two steps.
        host: where they are copied from a GPU, or None.
        arrived: when they have been.
        work: the reduction, or None.
    """

    values: torch.Tensor
    host: torch.Tensor | None
    arrived: Any
    work: Any
    parts: int
    scale: float

    def norms(self) -> tuple[Norms, bool]:
        """The norms, and whether they are of two steps; waits for them, which are a step old."""
        if self.work is not None:
            self.work.wait()
        if self.arrived is not None:
            self.arrived.synchronize()
        values = (self.values if self.host is None else self.host).tolist()
        if self.parts == 1:
            groups = len(values) // 3
            before, now, of_mean = (values[at : at + groups] for at in range(0, 3 * groups, groups))
            return of_two_steps(before, now, of_mean, self.scale), True
        groups = len(values) // 2
        return Norms(tuple(values[:groups]), tuple(values[groups:]), self.parts, self.scale), False


class GradientNorms:
    """The norms of the step under way.

    Each rank takes the norm of its own gradients, and of the mean of the buckets that are its to look at: a part of
    them. One reduction of a few numbers brings them together, and is looked at in the next step.

    Guarded by nothing: hooks run in the backward pass, their continuations before it ends, each with a bucket of its
    own.

    Args:
        optimizer: by whose groups norms are summed, and whose second moments precondition them if it is an Adam.
        group: of processes.
        preconditioned: as Adam's steps are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, preconditioned: bool) -> None:
        self._optimizer, self._group, self._preconditioned = optimizer, group, preconditioned
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._groups = len(optimizer.param_groups)
        self._group_of = {
            id(parameter): number for number, each in enumerate(optimizer.param_groups) for parameter in each["params"]
        }
        self._own: list[torch.Tensor] = []
        self._of_mean: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._now: dict[int, torch.Tensor] = {}
        self._last: dict[int, torch.Tensor] = {}  # of one rank alone: the gradients of the step before
        self._last_size = 0
        self._adam_steps: list[int | None] = [None] * self._groups
        self.working: Working | None = None

    @property
    def groups(self) -> int:
        """Groups of parameters."""
        return self._groups

    def begin(self, working: Working) -> None:
        """The gradients that come next are a step's; those of one that the optimizer has not made are forgotten."""
        self.forget()
        self.working = working

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange a bucket, with DDP's own hook, and take its norms before and after."""
        if self.working is None:
            return allreduce_hook(self._group, bucket)
        index, parameters, gradients = bucket.index(), bucket.parameters(), bucket.gradients()
        if self._size > 1 and self.working.step_weight:
            # The mean over the ranks of what the weights made of the gradients is to be weighted by samples.
            self._own.append(self._squared(parameters, gradients) / (self._size * self.working.step_weight))
        exchanged = allreduce_hook(self._group, bucket)
        if index % self._size != self._rank:
            return exchanged

        def after(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            mean = future.value()
            if self._size > 1:
                self._of_mean[index] = self._squared(parameters, gradients)
            else:
                self._compare(index, parameters, gradients, mean)
            return mean

        return exchanged.then(after)

    def finish(self, device: torch.device, loss_scale: torch.Tensor | None) -> Measured | None:
        """The step's gradients are complete: bring their norms together (collective); None if there is nothing new.

        Args:
            device: of the gradients.
            loss_scale: by which the loss had been multiplied.
        """
        working, zeros = self.working, torch.zeros(self._groups, dtype=torch.float64, device=device)
        if working is None:
            return None
        parts = min(self._size, working.step_size)
        of_mean = sum(self._of_mean.values(), zeros)
        if self._size > 1:
            values = torch.cat([sum(self._own, zeros), of_mean])
        elif self._now:
            values = torch.cat([sum(self._before.values(), zeros), sum(self._now.values(), zeros), of_mean])
        else:
            values = None
        self.forget()
        self._last_size = working.step_size
        if values is None or (parts == 1 and self._size > 1):
            return None
        if loss_scale is not None:
            values = values / loss_scale.to(values).square()
        work = dist.all_reduce(values, group=self._group, async_op=True) if self._size > 1 else None
        host = arrived = None
        if values.is_cuda:
            if work is not None:
                work.wait()  # for the stream, not for this thread
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        return Measured(values, host, arrived, work, parts, working.step_size / working.base_size)

    def forget(self) -> None:
        """Begin a step."""
        for each in (self._of_mean, self._before, self._now):
            each.clear()
        self._own.clear()
        self.working = None

    def stepped(self) -> None:
        """The optimizer has made a step."""
        self._adam_steps = [None if steps is None else steps + 1 for steps in self._adam_steps]

    def _compare(
        self, index: int, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], mean: torch.Tensor
    ) -> None:
        """One rank alone: with the step before, if that had the same number of samples."""
        assert self.working is not None
        olds = [self._last[id(each)] for each in parameters if id(each) in self._last]
        if len(olds) == len(parameters) and self._last_size == self.working.step_size:
            self._before[index] = self._squared(parameters, olds)
            self._now[index] = self._squared(parameters, gradients)
            means = [(old + new) / 2 for old, new in zip(olds, gradients, strict=True)]
            self._of_mean[index] = self._squared(parameters, means)
        kept = mean.detach().clone().split([each.numel() for each in gradients])
        self._last |= {id(each): one.view_as(new) for each, one, new in zip(parameters, kept, gradients, strict=True)}

    def _squared(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """float64[groups]: squared norms of gradients, preconditioned if they are to be."""
        found = torch.zeros(self._groups, dtype=torch.float64, device=gradients[0].device)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            group = self._group_of.get(id(parameter))
            if group is not None:
                found[group] += self._squared_norm(group, parameter, gradient)
        return found

    def _squared_norm(self, group: int, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        state: Mapping[str, Any] = self._optimizer.state.get(parameter, {}) if self._preconditioned else {}
        moments = second_moments(state)
        if moments is None:
            return squared_norm(gradient)
        options = self._optimizer.param_groups[group]
        return preconditioned_squared_norm(gradient, moments, options, self._steps_of(group, state))

    def _steps_of(self, group: int, state: Mapping[str, Any]) -> int:
        """Steps that Adam has made; asked for once, since the answer may be on a GPU."""
        if (known := self._adam_steps[group]) is None:
            known = self._adam_steps[group] = int(state["step"])
        return known


def second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Of an optimizer's state of one parameter: Adam's, or RMSprop's."""
    found: torch.Tensor | None = state.get("exp_avg_sq", state.get("square_avg"))
    return found


def squared_norm(gradient: torch.Tensor) -> torch.Tensor:
    """float64: of one parameter's gradient."""
    flat = gradient.detach().reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        return torch.dot(flat, flat).double()
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
    return norm.square().double()


def preconditioned_squared_norm(
    gradient: torch.Tensor, moments: torch.Tensor, options: Mapping[str, Any], steps: int
) -> torch.Tensor:
    """The same of a gradient as an Adam scales it; as it is where the moments say little yet.

    Args:
        moments: second ones, of the gradient's shape.
        options: of the group of parameters.
        steps: that the optimizer has made.
    """
    if steps < _LEAST_ADAM_STEPS:
        return squared_norm(gradient)
    flat = gradient.detach().reshape(-1)
    beta = options["betas"][1] if "betas" in options else None
    correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
    second, eps = moments.reshape(-1), options["eps"]
    at_a_time = flat.numel() if flat.is_cuda else _AT_A_TIME
    parts = [
        (piece.float() / (of_piece.sqrt() * correction + eps)).square_().sum(dtype=torch.float64)
        for piece, of_piece in zip(flat.split(at_a_time), second.split(at_a_time), strict=True)
    ]
    return torch.stack(parts).sum()
