"""Norms of gradients, of each rank's own and of their mean, measured while DistributedDataParallel reduces them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .noise import Norms, norms_of_two_steps

if TYPE_CHECKING:
    from .loader import ElasticDataLoader

#: Of models with at least this many elements the first ``EVERY`` steps are measured, and then one in so many; for
#: smaller ones measuring is cheap. The averages are over a thousand steps.
LARGE_MODEL, EVERY = 1 << 20, 16
#: Adam's second moments mean little before this number of steps.
_MIN_ADAM_STEPS = 5
#: Elements per operation: temporary results fit into a CPU's caches, and a GPU is kept busy.
_CHUNK, _GPU_CHUNK = 1 << 17, 1 << 24
#: Gradients of a bucket by parameter group and number of Adam steps.
NormGroups: TypeAlias = "dict[tuple[int, int | None], NormGroup]"
#: A parameter group, and the squared norm of some of its gradients.
Norm = tuple[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ReducedStep:
    """A step whose gradients are reduced over the ranks."""

    weight: float  # of this rank's batches
    size: int  # samples over all ranks
    base: int  # samples of a step at scale 1
    scale: float  # of a full step
    loss_scale: torch.Tensor | None = None  # factor of the loss; None for 1
    measured: bool = True  # false if gradients of other batches were added

    @classmethod
    def of(cls, loader: ElasticDataLoader, **more: Any) -> ReducedStep:
        """The step that the current batch of a loader ends."""
        base = loader.base_size
        return cls(loader.step_weight, loader.step_size, base, loader.full_size / base, **more)


@dataclass(frozen=True, slots=True)
class PendingNorms:
    """The norms of a step while they are reduced."""

    values: DelayedNumbers  # per parameter group: of ranks and of the mean; of one rank: of two steps and their mean
    work: Any  # the reduction to wait for, or None
    parts: int
    scale: float
    steps: int  # for which they stand

    def norms(self) -> Norms:
        """Wait for the norms."""
        if self.work is not None:
            self.work.wait()  # bounded by the timeout of the process group
        values = self.values.numbers()
        if self.parts == 1:
            groups = len(values) // 3
            previous, current, of_mean = (values[at : at + groups] for at in range(0, 3 * groups, groups))
            return norms_of_two_steps(previous, current, of_mean, self.scale)
        groups = len(values) // 2
        return Norms(tuple(values[:groups]), tuple(values[groups:]), self.parts, self.scale, steps=self.steps)


class DelayedNumbers:
    """Numbers of a tensor, copied asynchronously from a GPU."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values, self._arrived = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def numbers(self) -> list[float]:
        """Wait for the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._values.reshape(-1).tolist()
        return found


class GradientNorms:
    """Measures the norms of the current step.

    Each rank computes the norms of its own gradients, and those of the mean for its share of the buckets. One reduction
    of a few numbers combines them; its result is read in the next step.

    Of large models one step in several is measured, as reading all gradients takes time. A rank on its own compares
    steps with the one before, and so measures all. Sparse and complex gradients are left out.

    No lock is needed: hooks run in the backward pass, and each of their continuations appends for a different bucket.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, preconditioned: bool) -> None:
        self._optimizer, self._group, self._preconditioned = optimizer, group, preconditioned
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self.groups = len(optimizer.param_groups)
        self._group_of = {
            id(parameter): number for number, each in enumerate(optimizer.param_groups) for parameter in each["params"]
        }
        # Lists and not dicts by bucket: in the first step of a static graph all buckets have the same number.
        self._of_rank: list[Norm] = []
        self._of_mean: list[Norm] = []
        self._previous: list[Norm] = []
        self._current: list[Norm] = []
        self._last: dict[int, torch.Tensor] = {}  # gradients of the previous step, on one rank alone
        self._last_size = 0
        trained = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        is_large = sum(each.numel() for each in trained) >= LARGE_MODEL
        self._every = EVERY if is_large and self._size > 1 else 1
        self._steps = 0  # since the start or a restore: the same on all ranks, as all take part in a reduction
        self._adam_steps: dict[torch.Tensor, int] = {}  # for parameters whose own count is on a GPU
        #: The step whose gradients come next, and the one whose gradients have come.
        self.next_step: ReducedStep | None = None
        self.step: ReducedStep | None = None

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Reduce a bucket with DDP's default hook, and measure it before and after."""
        if (step := self.next_step) is not None:
            self.forget()  # a previous step that the optimizer did not make
            self.step = step
        index, parameters = bucket.index(), bucket.parameters()
        # Of complex gradients DDP splits the buffer as if each number were one real one.
        is_ordinary = not bucket.buffer().is_sparse and not parameters[0].is_complex()
        if self.step is None or not self.step.measured or not self._is_due or not is_ordinary:
            return allreduce_hook(self._group, bucket)
        gradients = bucket.gradients()
        norm_groups = self._norm_groups(parameters)
        if self._size > 1 and self.step.weight:
            self._of_rank += _squared(norm_groups, gradients)
        reduced = allreduce_hook(self._group, bucket)
        if index % self._size != self._rank:
            return reduced

        def after(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            mean = future.value()
            if self._size == 1:
                self._compare(norm_groups, parameters, gradients)
            else:
                self._of_mean += _squared(norm_groups, gradients)
            return mean

        return reduced.then(after)

    def finish(self, device: torch.device) -> PendingNorms | None:
        """Start reducing the norms of a step whose gradients are complete (collective); None if there are none."""
        step = self.step
        if step is None:
            return None
        was_due, stands_for = self._is_due, 1 if self._steps < self._every else self._every
        self._steps += 1
        if not was_due:
            self.forget()
            return None
        parts = min(self._size, step.size)
        of_rank, of_mean, previous, current = (
            self._sum_by_group(each, device) for each in (self._of_rank, self._of_mean, self._previous, self._current)
        )
        if self._size > 1:
            # Gradients have been multiplied by the weight; their mean over ranks is weighted by samples.
            weight = step.weight * self._size
            values = torch.cat([of_rank / weight if weight else of_rank, of_mean])
            if not step.measured:  # other ranks may have measured theirs: make the sum invalid
                values.fill_(torch.nan)
        elif self._current:
            values = torch.cat([previous, current, of_mean])
        else:
            values = None
        self.forget()
        self._last_size = step.size if step.measured else 0
        if values is None or (parts == 1 and self._size > 1):
            return None
        if step.loss_scale is not None and self._size > 1:
            values = values / step.loss_scale.to(values).square()
        work = dist.all_reduce(values, group=self._group, async_op=True) if self._size > 1 else None
        if values.is_cuda and work is not None:
            work.wait()  # blocks the stream, not this thread
            work = None
        return PendingNorms(DelayedNumbers(values), work, parts, step.size / step.base, stands_for)

    @property
    def _is_due(self) -> bool:
        """Whether the current step is one to measure."""
        return self._steps < self._every or self._steps % self._every == 0

    def forget(self) -> None:
        """Drop the current step, and do not measure the next."""
        self.next_step = self.step = None
        for each in (self._of_rank, self._of_mean, self._previous, self._current):
            each.clear()

    def restored(self) -> None:
        """Drop everything after a restore: the next step does not follow the previous one."""
        self._steps = 0
        self.forget()
        self._last_size = 0
        self._last.clear()
        self._adam_steps.clear()

    def stepped_parameters(self) -> list[torch.Tensor]:
        """Parameters with counted Adam steps that have gradients in this step."""
        return [each for each in self._adam_steps if each.grad is not None]

    def count_steps(self, parameters: list[torch.Tensor]) -> None:
        """Count an Adam step of these parameters."""
        for each in parameters:
            self._adam_steps[each] += 1

    def _compare(
        self, norm_groups: NormGroups, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """On one rank alone, compare with the previous step if it had the same number of samples."""
        assert self.step is not None
        if self.step.loss_scale is not None:  # which changes between steps
            factor = 1 / self.step.loss_scale
            gradients = [each * factor for each in gradients]
        olds = [self._last[id(each)] for each in parameters if id(each) in self._last]
        if len(olds) == len(parameters) and self._last_size == self.step.size:
            self._previous += _squared(norm_groups, olds)
            self._current += _squared(norm_groups, gradients)
            means = [(old + new) / 2 for old, new in zip(olds, gradients, strict=True)]
            self._of_mean += _squared(norm_groups, means)
        self._last |= {id(each): new.detach().clone() for each, new in zip(parameters, gradients, strict=True)}

    def _norm_groups(self, parameters: Sequence[torch.Tensor]) -> NormGroups:
        """Group the gradients of a bucket."""
        found: NormGroups = {}
        for index, parameter in enumerate(parameters):
            if (group := self._group_of.get(id(parameter))) is None:
                continue
            state: Mapping[str, Any] = self._optimizer.state.get(parameter, {}) if self._preconditioned else {}
            moments = _second_moments(state)
            steps = None if moments is None else self._steps_of(parameter, state)
            if (norm_group := found.get((group, steps))) is None:
                scaling = None if steps is None else AdamScaling.of(self._optimizer.param_groups[group], steps)
                norm_group = found[group, steps] = NormGroup(scaling)
            norm_group.add(index, None if moments is None else _in_bucket_order(moments, parameter))
        return found

    def _sum_by_group(self, norms: Sequence[Norm], device: torch.device) -> torch.Tensor:
        """float64[groups]"""
        found = torch.zeros(self.groups, dtype=torch.float64, device=device)
        for group, norm in norms:
            found[group] += norm
        return found

    def _steps_of(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> int:
        """Adam's steps of a parameter; a count on a GPU is read once and then followed here."""
        steps = state["step"]
        if not (isinstance(steps, torch.Tensor) and steps.is_cuda):
            return int(steps)
        if (known := self._adam_steps.get(parameter)) is None:
            known = self._adam_steps[parameter] = int(steps)
        return known


def _squared(norm_groups: NormGroups, gradients: Sequence[torch.Tensor]) -> list[Norm]:
    return [(group, norm_group.squared_norm(gradients)) for (group, _), norm_group in norm_groups.items()]


def _in_bucket_order(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Permute dimensions to the order of the parameter's memory (channels last), which buckets use for gradients."""
    if parameter.is_contiguous():
        return tensor
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    return tensor.permute(order) if parameter.permute(order).is_contiguous() else tensor


# --- squared norms, of gradients as they are or as Adam scales them ---------------------------------------------------


def _second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor by whose root AMSGrad, Adam or RMSprop divides."""
    names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
    return next((state[name] for name in names if name in state), None)


@dataclass(frozen=True, slots=True)
class AdamScaling:
    """Adam divides gradients by ``(sqrt(moments) + eps) * correction``."""

    eps: float
    correction: float

    @classmethod
    def of(cls, options: Mapping[str, Any], steps: int) -> AdamScaling | None:
        """The scaling after ``steps`` steps with a group's options; None while the moments mean little."""
        if steps < _MIN_ADAM_STEPS:
            return None
        beta = options["betas"][1] if "betas" in options else None
        correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
        return cls(options["eps"] / correction, correction)


class NormGroup:
    """Gradients of a bucket whose squared norm is computed together, since one call for each would be slow."""

    def __init__(self, scaling: AdamScaling | None) -> None:
        self._scaling = scaling
        self._indices: list[int] = []
        self._moments: list[torch.Tensor] = []

    def add(self, index: int, moments: torch.Tensor | None = None) -> None:
        """Add the gradient at an index of the bucket."""
        self._indices.append(index)
        if self._scaling is not None:
            assert moments is not None
            self._moments.append(moments)

    def squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """float64: the squared norm of the group, out of the bucket's gradients."""
        vectors = _chunks(gradients[index] for index in self._indices)
        if self._scaling is not None:
            eps = self._scaling.eps
            # What Adam divides by, without the correction, which is applied to the norm. It is overwritten, as it is in
            # the cache.
            divisors = (torch.sqrt(vector.float()).add_(eps) for vector in _chunks(self._moments))
            vectors = (torch.div(one.float(), by, out=by) for one, by in zip(vectors, divisors, strict=True))
        norms = [_square(vector) for vector in vectors]
        if not norms:
            return torch.zeros((), dtype=torch.float64, device=gradients[0].device)
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).sum()
        return norm if self._scaling is None else norm / self._scaling.correction**2


def _chunks(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Tensors concatenated into few vectors, the same for tensors of the same shapes."""
    batch, elements = list[torch.Tensor](), 0
    for tensor in tensors:
        vector = tensor.detach().contiguous().view(-1)
        most = _GPU_CHUNK if vector.is_cuda else _CHUNK
        for piece in vector.split(most):
            if batch and elements + piece.numel() > most:
                yield torch.cat(batch) if len(batch) > 1 else batch[0]
                batch, elements = [], 0
            if piece.numel():
                batch.append(piece)
                elements += piece.numel()
    if batch:
        yield torch.cat(batch) if len(batch) > 1 else batch[0]


def _square(vector: torch.Tensor) -> torch.Tensor:
    """float64"""
    if vector.dtype in (torch.float32, torch.float64):
        return torch.dot(vector, vector).double()
    norm: torch.Tensor = torch.linalg.vector_norm(vector, dtype=torch.float32)
    return norm.square().double()
