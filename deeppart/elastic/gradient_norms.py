"""Norms of gradients, of each rank's own and of their mean, measured while DistributedDataParallel reduces them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .noise import Norms, norms_of_two_steps

if TYPE_CHECKING:
    from .loader import ElasticDataLoader

#: Models with at least this many elements are sampled: each rank reads a part. For smaller ones reading all is cheap.
MIN_SAMPLED_MODEL = 1 << 20
#: Elements that all ranks together read per step of a large model. The sum over them estimates that over all elements
#: to within sqrt(kurtosis / elements).
SAMPLED_ELEMENTS = 1 << 22
#: Smaller tensors are read whole by one rank in turn; of larger ones at least this many elements are read per step, or
#: they would be left out in most steps of a very large model.
MIN_SAMPLED_TENSOR = 1 << 12
#: Length of a run of consecutive elements in a part, two cache lines: every row of a matrix is in many parts.
RUN = 32
#: How far from the golden section to look for a stride; some that have no common divisor with the parts are bad.
_STRIDE_RANGE = 32
#: Adam's second moments mean little before this number of steps.
_MIN_ADAM_STEPS = 5
#: Elements per operation: temporary results fit into a CPU's caches, and a GPU is kept busy.
_CHUNK, _GPU_CHUNK = 1 << 17, 1 << 24
#: Gradients of a bucket by parameter group, weight, and number of Adam steps.
NormGroups: TypeAlias = "dict[tuple[int, float, int | None], NormGroup]"
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
        return Norms(tuple(values[:groups]), tuple(values[groups:]), self.parts, self.scale)


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

    For a large model, if all ranks have the same number of samples, a rank reads a part of each gradient and of the
    mean, another one in each step (:class:`Rotation`). The sum over ranks is an unbiased estimate of the mean over
    ranks of the norms, since elements of different ranks' gradients are equally large on average.

    No lock is needed: hooks run in the backward pass, and each of their continuations appends for a different bucket.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, preconditioned: bool) -> None:
        self._optimizer, self._group, self._preconditioned = optimizer, group, preconditioned
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self.groups = len(optimizer.param_groups)
        self._group_of = {
            id(parameter): number for number, each in enumerate(optimizer.param_groups) for parameter in each["params"]
        }
        self._number_of = {each: number for number, each in enumerate(self._group_of)}
        # Lists and not dicts by bucket: in the first step of a static graph all buckets have the same number.
        self._of_rank: list[Norm] = []
        self._of_mean: list[Norm] = []
        self._previous: list[Norm] = []
        self._current: list[Norm] = []
        self._last: dict[int, torch.Tensor] = {}  # gradients of the previous step, on one rank alone
        self._last_size = 0
        trained = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        self._elements = sum(each.numel() for each in trained)
        #: Selects the parts to read; the same on all ranks, since all take part in every reduction.
        self.rotation_index = 0
        self._adam_steps: dict[torch.Tensor, int] = {}  # for parameters whose own count is on a GPU
        #: The step whose gradients come next, and the one whose gradients have come.
        self.next_step: ReducedStep | None = None
        self.step: ReducedStep | None = None

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Reduce a bucket with DDP's default hook, and measure it before and after."""
        if (step := self.next_step) is not None:
            self.forget()  # a previous step that the optimizer did not make
            self.step = step
        if self.step is None or not self.step.measured:
            return allreduce_hook(self._group, bucket)
        index, parameters = bucket.index(), bucket.parameters()
        gradients = _special_gradients(bucket.buffer(), parameters) or bucket.gradients()
        rotation = self._rotation_of(self.step)
        values = _dense_values(gradients)
        norm_groups = self._norm_groups(parameters, values, rotation)
        if self._size > 1 and self.step.weight:
            self._of_rank += _squared(norm_groups, values)
        reduced = allreduce_hook(self._group, bucket)
        if rotation is None and index % self._size != self._rank:
            return reduced

        def after(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            mean = future.value()
            if self._size == 1:
                self._compare(norm_groups, parameters, gradients)
            elif gradients[0].is_sparse:  # the mean has the rows of all ranks
                values = _dense_values(gradients)
                self._of_mean += _squared(self._norm_groups(parameters, values, rotation), values)
            else:
                self._of_mean += _squared(norm_groups, gradients)
            return mean

        return reduced.then(after)

    def finish(self, device: torch.device) -> PendingNorms | None:
        """Start reducing the norms of a step whose gradients are complete (collective); None if there are none."""
        step = self.step
        if step is None:
            return None
        parts = min(self._size, step.size)
        of_rank, of_mean, previous, current = (
            self._sum_by_group(each, device) for each in (self._of_rank, self._of_mean, self._previous, self._current)
        )
        if self._size > 1:
            # Gradients have been multiplied by the weight; their mean over ranks is weighted by samples.
            weight = step.weight if self._rotation_of(step) else step.weight * self._size
            values = torch.cat([of_rank / weight if weight else of_rank, of_mean])
            if not step.measured:  # other ranks may have measured theirs: make the sum invalid
                values.fill_(torch.nan)
        elif self._current:
            values = torch.cat([previous, current, of_mean])
        else:
            values = None
        self.forget()
        self._last_size = step.size if step.measured else 0
        self.rotation_index += 1
        if values is None or (parts == 1 and self._size > 1):
            return None
        if step.loss_scale is not None and self._size > 1:
            values = values / step.loss_scale.to(values).square()
        work = dist.all_reduce(values, group=self._group, async_op=True) if self._size > 1 else None
        if values.is_cuda and work is not None:
            work.wait()  # blocks the stream, not this thread
            work = None
        return PendingNorms(DelayedNumbers(values), work, parts, step.size / step.base)

    def forget(self) -> None:
        """Drop the current step, and do not measure the next."""
        self.next_step = self.step = None
        for each in (self._of_rank, self._of_mean, self._previous, self._current):
            each.clear()

    def restored(self, rotation_index: int) -> None:
        """Drop everything after a restore: the next step does not follow the previous one."""
        self.rotation_index = rotation_index
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
        gradients = [each.to_dense() for each in gradients]  # sparse ones have other rows in each step
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

    def _rotation_of(self, step: ReducedStep) -> Rotation | None:
        """The parts that this rank reads, or None for all elements."""
        if self._size == 1 or self._elements < MIN_SAMPLED_MODEL or step.size % self._size:
            return None
        return Rotation(self.rotation_index, self._rank, self._size, self._elements)

    def _norm_groups(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], rotation: Rotation | None
    ) -> NormGroups:
        """Group what this rank reads of a bucket."""
        found: NormGroups = {}
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            group, part, weight = self._group_of.get(id(parameter)), WHOLE_TENSOR, 1.0
            if group is None:
                continue
            if rotation is not None:
                selected = rotation.part_of(gradient.numel(), self._number_of[id(parameter)])
                if selected is None:
                    continue
                part, weight = selected
            state: Mapping[str, Any] = self._optimizer.state.get(parameter, {}) if self._preconditioned else {}
            moments = _second_moments(state)
            steps = None if moments is None else self._steps_of(parameter, state)
            if (norm_group := found.get((group, weight, steps))) is None:
                scaling = None if steps is None else AdamScaling.of(self._optimizer.param_groups[group], steps)
                # Divisors of parts are kept for the mean; those of a whole model would take too much memory.
                norm_group = found[group, weight, steps] = NormGroup(scaling, weight, keep=rotation is not None)
            norm_group.add(index, part, None if moments is None else _in_bucket_order(moments, parameter))
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


def _special_gradients(buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Sparse or complex gradients, which ``bucket.gradients()`` does not return correctly; else an empty list.

    A sparse gradient is alone in its bucket. DDP reduces two real numbers for each complex one, but splits the buffer
    as if there were one.
    """
    if buffer.is_sparse:
        return [buffer]
    if not parameters[0].is_complex():
        return []
    numbers = buffer if buffer.is_complex() else torch.view_as_complex(buffer.view(-1, 2))
    pieces = numbers.split([each.numel() for each in parameters])
    return [each.view(parameter.shape) for each, parameter in zip(pieces, parameters, strict=True)]


def _squared(norm_groups: NormGroups, gradients: Sequence[torch.Tensor]) -> list[Norm]:
    return [(group, norm_group.squared_norm(gradients)) for (group, _, _), norm_group in norm_groups.items()]


def _dense_values(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Dense gradients, and the nonzero values of sparse ones."""
    return [each.coalesce().values() if each.is_sparse else each for each in gradients]


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

    def __init__(self, scaling: AdamScaling | None, weight: float = 1.0, *, keep: bool = False) -> None:
        self._scaling, self._keep = scaling, keep
        self._factor = weight if scaling is None else weight / scaling.correction**2
        self._parts: list[tuple[int, TensorPart]] = []
        self._moments: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] | None = None

    def add(self, index: int, part: TensorPart, moments: torch.Tensor | None = None) -> None:
        """Add a part of the gradient at an index of the bucket."""
        self._parts.append((index, part))
        if self._scaling is not None:
            assert moments is not None
            self._moments.append(moments)

    def squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """float64: the squared norm of the group, out of the bucket's gradients."""
        vectors = _chunks((gradients[index], part) for index, part in self._parts)
        if self._scaling is not None:
            pairs = zip(vectors, self._divisors(), strict=True)
            # Divisors that are not kept are overwritten, as they are in the cache.
            vectors = (torch.div(one.float(), by, out=None if self._keep else by) for one, by in pairs)
        norms = [_square(vector) for vector in vectors]
        if len(norms) == 1:
            norm = norms[0]
        else:
            zero = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
            norm = torch.stack(norms).sum() if norms else zero
        return norm if self._factor == 1.0 else norm * self._factor

    def _divisors(self) -> Iterable[torch.Tensor]:
        """What Adam divides by, without the correction, which is applied to the norm."""
        assert self._scaling is not None
        if self._kept is not None:
            for each in self._kept:
                if each.is_cuda:  # created in another stream
                    each.record_stream(torch.cuda.current_stream(each.device))
            return self._kept
        eps, parts = self._scaling.eps, (part for _, part in self._parts)
        found = (torch.sqrt(vector.float()).add_(eps) for vector in _chunks(zip(self._moments, parts, strict=True)))
        if not self._keep:
            return found
        self._kept = list(found)
        return self._kept


def _chunks(parts: Iterable[tuple[torch.Tensor, TensorPart]]) -> Iterator[torch.Tensor]:
    """Parts of tensors concatenated into few vectors, the same for tensors of the same shapes.

    Complex numbers count as two real ones, as Adam treats them.
    """
    pieces = [
        piece
        for tensor, part in parts
        for piece in part.of(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
    ]
    for dim in (1, 2):  # concatenating both would copy each first
        for batch in _batches([piece for piece in pieces if piece.dim() == dim]):
            yield (torch.cat(batch) if len(batch) > 1 else batch[0]).reshape(-1)


def _batches(pieces: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group tensors up to the chunk size, and split larger ones."""
    batch, elements = list[torch.Tensor](), 0
    for piece in pieces:
        most = _GPU_CHUNK if piece.is_cuda else _CHUNK
        for cut in piece.split(max(1, most * len(piece) // piece.numel())) if piece.numel() > most else (piece,):
            if batch and elements + cut.numel() > most:
                yield batch
                batch, elements = [], 0
            batch.append(cut)
            elements += cut.numel()
    if batch:
        yield batch


def _square(vector: torch.Tensor) -> torch.Tensor:
    """float64"""
    if vector.dtype in (torch.float32, torch.float64):
        return torch.dot(vector, vector).double()
    norm: torch.Tensor = torch.linalg.vector_norm(vector, dtype=torch.float32)
    return norm.square().double()


# --- sampling of large gradients --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorPart:
    """One of several disjoint parts of a tensor's elements."""

    number: int = 0
    parts: int = 1

    def of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Views of the part, if the memory layout allows: [rows, RUN], and a vector of the remaining elements."""
        whole = tensor.detach().contiguous()
        if self.parts == 1:
            return [whole.view(-1)] if whole.numel() else []
        begin, stride = self.number * RUN, self.parts * RUN
        rows = max(0, (whole.numel() - begin - RUN) // stride + 1)
        pieces = [whole.as_strided((rows, RUN), (stride, 1), whole.storage_offset() + begin)] if rows else []
        if whole.numel() > begin + rows * stride:
            pieces.append(whole.view(-1)[begin + rows * stride :])
        return pieces


WHOLE_TENSOR = TensorPart()


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which parts a rank reads in a step: each rank another part of every large tensor, and others in the next step."""

    index: int  # of the step
    rank: int
    ranks: int
    elements: int  # of the whole model

    def part_of(self, elements: int, number: int) -> tuple[TensorPart, float] | None:
        """The part of tensor ``number`` and the weight of its norm; None if another rank reads the tensor.

        The weighted sum over ranks is an unbiased estimate of the norm of the whole tensor.
        """
        if elements < MIN_SAMPLED_TENSOR:
            return (WHOLE_TENSOR, 1.0) if (self.index + number) % self.ranks == self.rank else None
        times = max(1, min(self.elements // SAMPLED_ELEMENTS, elements // MIN_SAMPLED_TENSOR))
        # An odd number: rows of matrices are often a multiple of a power of two long, so an even number of parts would
        # select the same few columns of every row, and in most steps none with large gradients.
        times -= 1 - times % 2
        parts = times * self.ranks
        # Other parts for each tensor, since layers of a model have large gradients at the same positions.
        turn = self.index + number
        return TensorPart((self.rank * times + turn * _stride(times, parts)) % parts, parts), float(times)


@cache
def _stride(times: int, parts: int) -> int:
    """Distance between the parts of consecutive steps, with which any few steps are spread evenly over the tensor.

    It visits all parts; together the ranks visit all in ``times`` steps, in an order that depends on ``times`` alone.
    Consecutive parts would read the same rows for many steps, and then not for long.
    """
    golden = round(times * (math.sqrt(5) - 1) / 2)
    near = range(max(1, golden - _STRIDE_RANGE), min(times, golden + _STRIDE_RANGE) + 1)
    stride = min((each for each in near if math.gcd(each, times) == 1), key=lambda each: _worst_quotient(each, times))
    while math.gcd(stride, parts) > 1:
        stride += times
    return stride


def _worst_quotient(stride: int, times: int) -> int:
    """The largest quotient in the continued fraction of stride / times: smaller means more evenly spread."""
    worst = 0
    while stride:
        times, (quotient, stride) = stride, divmod(times, stride)
        worst = max(worst, quotient)
    return worst
