"""Norms of gradients, of each rank's own and of their mean, taken while DistributedDataParallel exchanges them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .noise import Norms, of_two_steps

if TYPE_CHECKING:
    from .loader import ElasticDataLoader

#: Of a model with so many elements each rank looks at some of them: to look at all is what costs then. Of fewer
#: elements some say less, and all cost nothing.
LEAST_DIVIDED = 1 << 20
#: All ranks together look at about so many elements of a model in a step: the sum over them is as good as that over
#: all, to within sqrt(kurtosis / elements).
ENOUGH = 1 << 22
#: Tensors with fewer elements are looked at whole, by one rank after the other; of others at so many in each step, or
#: small ones would be left out in most steps of a very large model.
LEAST_OF_TENSOR = 1 << 12
#: Parts consist of runs of so many elements, two cache lines: rows of a matrix, which may differ much, fall to many
#: parts each.
RUN = 32
#: So far from the golden section a better stride is looked for: what has no common divisor with the parts may be a bad
#: one.
_NEAR = 32
#: Adam's second moments say little before so many steps.
_LEAST_ADAM_STEPS = 5
#: Elements that are worked on at a time: on a CPU what is made of them is small beside its caches, on a GPU they are as
#: many as keep it busy.
_AT_A_TIME, _AT_A_TIME_ON_GPU = 1 << 17, 1 << 24
#: Of a bucket, what is taken together: by the group, by how often it counts, and by the steps that Adam has made.
NormGroups: TypeAlias = "dict[tuple[int, float, int | None], NormGroup]"
#: A group, and a squared norm of some of its gradients.
Norm = tuple[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExchangedStep:
    """A step whose gradients are exchanged."""

    weight: float  # of this rank's batches
    size: int  # samples, all ranks together
    base: int  # of a step at scale 1
    scale: float  # of a whole step, by those
    loss_scale: torch.Tensor | None = None  # by which the loss is multiplied; None for 1
    measured: bool = True  # false if its gradients are not those of its own batches alone

    @classmethod
    def of(cls, loader: ElasticDataLoader, **more: Any) -> ExchangedStep:
        """The one that the batch of a loader ends."""
        base = loader.base_size
        return cls(loader.step_weight, loader.step_size, base, loader.whole_size / base, **more)


@dataclass(frozen=True, slots=True)
class PendingNorms:
    """The norms of a step, on their way."""

    values: DelayedNumbers  # 2 or 3 for each group: as of Norms, or of two steps
    work: Any  # the reduction, if the values are not copied after it; or None
    parts: int
    scale: float

    def norms(self) -> tuple[Norms, bool]:
        """The norms, and whether they are of two steps; waits for them, which are a step old."""
        if self.work is not None:
            self.work.wait()  # bounded: by the timeout of the process group
        values = self.values.numbers()
        if self.parts == 1:
            groups = len(values) // 3
            before, now, of_mean = (values[at : at + groups] for at in range(0, 3 * groups, groups))
            return of_two_steps(before, now, of_mean, self.scale), True
        groups = len(values) // 2
        return Norms(tuple(values[:groups]), tuple(values[groups:]), self.parts, self.scale), False


class DelayedNumbers:
    """Numbers of a tensor; from a GPU they are copied meanwhile, and nothing waits for it."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values, self._arrived = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def numbers(self) -> list[float]:
        """One after the other; waits until they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        found: list[float] = self._values.reshape(-1).tolist()
        return found


class GradientNorms:
    """The norms of the step under way.

    Each rank takes the norm of its own gradients, and of the mean of the buckets that are its to look at: a part of
    them. One reduction of a few numbers brings them together, and is looked at in the next step.

    Of a large model, where ranks have as many samples each, a rank takes the norms of a part of each gradient, of its
    own and of the mean, another one in each step (:class:`Rotation`). The sum over ranks is an estimate of the mean
    over ranks of the norms of all, without bias: on average an element of one rank's gradient is as large as of
    another's.

    Guarded by nothing: hooks run in the backward pass, their continuations before it ends, each with a bucket of its
    own.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, preconditioned: bool) -> None:
        self._optimizer, self._group, self._preconditioned = optimizer, group, preconditioned
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._groups = len(optimizer.param_groups)
        self._group_of = {
            id(parameter): number for number, each in enumerate(optimizer.param_groups) for parameter in each["params"]
        }
        self._number_of = {each: number for number, each in enumerate(self._group_of)}
        self._own: list[Norm] = []
        # Some for each bucket. Their numbers do not identify them: DDP gives all of them the same one in the
        # first step of a static graph.
        self._of_mean: list[Norm] = []
        self._before: list[Norm] = []
        self._now: list[Norm] = []
        self._last: dict[int, torch.Tensor] = {}  # of one rank alone: the gradients of the step before
        self._last_size = 0
        trained = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        self._elements = sum(each.numel() for each in trained)
        #: Of the parts; the same on all ranks, who take part in every exchange.
        self.turn = 0
        self._adam_steps: dict[torch.Tensor, int] = {}  # of those whose number is on a GPU
        #: The one whose gradients come next, and the one whose gradients have come.
        self.coming: ExchangedStep | None = None
        self.step: ExchangedStep | None = None

    @property
    def groups(self) -> int:
        """Groups of parameters."""
        return self._groups

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange a bucket, with DDP's own hook, and take its norms before and after.

        Gradients of a step that the optimizer has not made are forgotten.
        """
        if (step := self.coming) is not None:
            self.forget()
            self.step = step
        if self.step is None or not self.step.measured:
            return allreduce_hook(self._group, bucket)
        index, parameters = bucket.index(), bucket.parameters()
        gradients = _gradients(bucket.buffer(), parameters) or bucket.gradients()
        rotation = self._rotation_of(self.step)
        values = _values(gradients)
        norm_groups = self._norm_groups(parameters, values, rotation)
        if self._size > 1 and self.step.weight:
            self._own += _squared(norm_groups, values)
        exchanged = allreduce_hook(self._group, bucket)
        if rotation is None and index % self._size != self._rank:
            return exchanged

        def after(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            mean = future.value()
            if self._size == 1:
                self._compare(norm_groups, parameters, gradients)
            elif gradients[0].is_sparse:  # of all ranks' rows together
                values = _values(gradients)
                self._of_mean += _squared(self._norm_groups(parameters, values, rotation), values)
            else:
                self._of_mean += _squared(norm_groups, gradients)
            return mean

        return exchanged.then(after)

    def finish(self, device: torch.device) -> PendingNorms | None:
        """The step's gradients are complete: bring their norms together (collective); None if there is nothing new."""
        step = self.step
        if step is None:
            return None
        parts = min(self._size, step.size)
        own, of_mean, before, now = (
            self._summed(each, device) for each in (self._own, self._of_mean, self._before, self._now)
        )
        if self._size > 1:
            # The mean over the ranks of what the weights made of the gradients is to be weighted by samples.
            weight = step.weight if self._rotation_of(step) else step.weight * self._size
            values = torch.cat([own / weight if weight else own, of_mean])
            if not step.measured:  # others may have measured theirs, and wait: a sum with this is no number
                values.fill_(torch.nan)
        elif self._now:
            values = torch.cat([before, now, of_mean])
        else:
            values = None
        self.forget()
        self._last_size = step.size if step.measured else 0
        self.turn += 1
        if values is None or (parts == 1 and self._size > 1):
            return None
        if step.loss_scale is not None and self._size > 1:
            values = values / step.loss_scale.to(values).square()
        work = dist.all_reduce(values, group=self._group, async_op=True) if self._size > 1 else None
        if values.is_cuda and work is not None:
            work.wait()  # for the stream, not for this thread
            work = None
        return PendingNorms(DelayedNumbers(values), work, parts, step.size / step.base)

    def forget(self) -> None:
        """What has come belongs to no step, and what comes next does not."""
        self.coming = self.step = None
        for each in (self._own, self._of_mean, self._before, self._now):
            each.clear()

    def restored(self, turn: int) -> None:
        """The training goes on from another place: what was before is no step before."""
        self.turn = turn
        self.forget()
        self._last_size = 0
        self._last.clear()
        self._adam_steps.clear()

    def moved(self) -> list[torch.Tensor]:
        """Parameters that a step which the optimizer has just made has changed, of those whose steps are counted."""
        return [each for each in self._adam_steps if each.grad is not None]

    def stepped(self, moved: list[torch.Tensor]) -> None:
        """The optimizer has made that step."""
        for each in moved:
            self._adam_steps[each] += 1

    def _compare(
        self, norm_groups: NormGroups, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """One rank alone: with the step before, if that had the same number of samples."""
        assert self.step is not None
        gradients = [each.to_dense() for each in gradients]  # the step before had other rows
        if self.step.loss_scale is not None:  # the next step may have another one
            factor = 1 / self.step.loss_scale
            gradients = [each * factor for each in gradients]
        olds = [self._last[id(each)] for each in parameters if id(each) in self._last]
        if len(olds) == len(parameters) and self._last_size == self.step.size:
            self._before += _squared(norm_groups, olds)
            self._now += _squared(norm_groups, gradients)
            means = [(old + new) / 2 for old, new in zip(olds, gradients, strict=True)]
            self._of_mean += _squared(norm_groups, means)
        self._last |= {id(each): new.detach().clone() for each, new in zip(parameters, gradients, strict=True)}

    def _rotation_of(self, step: ExchangedStep) -> Rotation | None:
        """The elements that this rank reads, if not all of them."""
        if self._size == 1 or self._elements < LEAST_DIVIDED or step.size % self._size:
            return None
        return Rotation(self.turn, self._rank, self._size, self._elements)

    def _norm_groups(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], rotation: Rotation | None
    ) -> NormGroups:
        """What this rank takes the norms of, preconditioned if they are to be."""
        found: NormGroups = {}
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            group, part, counts = self._group_of.get(id(parameter)), WHOLE_TENSOR, 1.0
            if group is None:
                continue
            if rotation is not None:
                looked = rotation.of(gradient.numel(), self._number_of[id(parameter)])
                if looked is None:
                    continue
                part, counts = looked
            state: Mapping[str, Any] = self._optimizer.state.get(parameter, {}) if self._preconditioned else {}
            moments = second_moments(state)
            steps = None if moments is None else self._steps_of(parameter, state)
            if (norm_group := found.get((group, counts, steps))) is None:
                scaling = None if steps is None else Scaling.of(self._optimizer.param_groups[group], steps)
                # Of all of a model's gradients there is no room for what they are divided by; of parts there is.
                norm_group = found[group, counts, steps] = NormGroup(scaling, counts, keeps=rotation is not None)
            norm_group.add(place, part, None if moments is None else _as_in_buckets(moments, parameter))
        return found

    def _summed(self, norms: Sequence[Norm], device: torch.device) -> torch.Tensor:
        """float64[groups]"""
        found = torch.zeros(self._groups, dtype=torch.float64, device=device)
        for group, norm in norms:
            found[group] += norm
        return found

    def _steps_of(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> int:
        """Steps that Adam has made with a parameter; read once if the value is on a GPU."""
        steps = state["step"]
        if not (isinstance(steps, torch.Tensor) and steps.is_cuda):
            return int(steps)
        if (known := self._adam_steps.get(parameter)) is None:
            known = self._adam_steps[parameter] = int(steps)
        return known


def _gradients(buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that ``bucket.gradients()`` does not give: a sparse one, alone in its bucket, and complex ones.

    DDP exchanges two real numbers for each complex one, and cuts that as if it were one.
    """
    if buffer.is_sparse:
        return [buffer]
    if not parameters[0].is_complex():
        return []
    numbers = buffer if buffer.is_complex() else torch.view_as_complex(buffer.view(-1, 2))
    cut = numbers.split([each.numel() for each in parameters])
    return [each.view(parameter.shape) for each, parameter in zip(cut, parameters, strict=True)]


def _squared(norm_groups: NormGroups, gradients: Sequence[torch.Tensor]) -> list[Norm]:
    """Of what is looked at of a bucket's gradients."""
    return [(group, norm_group.squared_norm(gradients)) for (group, _, _), norm_group in norm_groups.items()]


def _values(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients; of sparse ones what is not 0."""
    return [each.coalesce().values() if each.is_sparse else each for each in gradients]


def _as_in_buckets(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Its elements in the order of a parameter's memory, such as channels last: in buckets gradients have that one."""
    if parameter.is_contiguous():
        return tensor
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    return tensor.permute(order) if parameter.permute(order).is_contiguous() else tensor


# --- squared norms, as gradients are or as an Adam scales them --------------------------------------------------------


def second_moments(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Of an optimizer's state of one parameter: Adam's, AMSGrad's, or RMSprop's; those that it divides by."""
    names = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
    return next((state[name] for name in names if name in state), None)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An Adam divides gradients by ``(sqrt(moments) + eps) * correction``."""

    eps: float
    correction: float

    @classmethod
    def of(cls, options: Mapping[str, Any], steps: int) -> Scaling | None:
        """After so many steps with a group's options; None for not at all, where moments say little yet."""
        if steps < _LEAST_ADAM_STEPS:
            return None
        beta = options["betas"][1] if "betas" in options else None
        correction = 1.0 if beta is None else 1 / math.sqrt(1 - beta**steps)
        return cls(options["eps"] / correction, correction)


class NormGroup:
    """Gradients of a bucket whose squared norms are taken together, of a part of each.

    Most parts are so small that calling for each of them would be what costs.
    """

    def __init__(self, scaling: Scaling | None, counts: float = 1.0, *, keeps: bool = False) -> None:
        self._scaling, self._keeps = scaling, keeps
        self._factor = counts if scaling is None else counts / scaling.correction**2
        self._looked: list[tuple[int, TensorPart]] = []
        self._moments: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] | None = None

    def add(self, place: int, part: TensorPart, moments: torch.Tensor | None = None) -> None:
        """One more."""
        self._looked.append((place, part))
        if self._scaling is not None:
            assert moments is not None
            self._moments.append(moments)

    def squared_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """float64: of all of these together, out of the bucket's."""
        vectors = _gathered((gradients[place], part) for place, part in self._looked)
        if self._scaling is not None:
            pairs = zip(vectors, self._divisors(), strict=True)
            # What is not kept is written over: it is in caches, other memory is not.
            vectors = (torch.div(one.float(), by, out=None if self._keeps else by) for one, by in pairs)
        norm = _summed([_square(vector) for vector in vectors], gradients[0].device)
        return norm if self._factor == 1.0 else norm * self._factor

    def _divisors(self) -> Iterable[torch.Tensor]:
        """Without the correction: one pass over the elements less."""
        assert self._scaling is not None
        if self._kept is not None:
            for each in self._kept:
                if each.is_cuda:  # made in another stream than that of this call
                    each.record_stream(torch.cuda.current_stream(each.device))
            return self._kept
        eps, parts = self._scaling.eps, (part for _, part in self._looked)
        found = (torch.sqrt(vector.float()).add_(eps) for vector in _gathered(zip(self._moments, parts, strict=True)))
        if not self._keeps:
            return found
        self._kept = list(found)
        return self._kept


def _gathered(looked: Iterable[tuple[torch.Tensor, TensorPart]]) -> Iterator[torch.Tensor]:
    """Parts of tensors, as few vectors of as many elements as are worked on at a time; only shapes decide which.

    Complex numbers are two real ones each, as Adam takes them.
    """
    pieces = [
        piece
        for tensor, part in looked
        for piece in part.of(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)
    ]
    for dim in (1, 2):  # of two shapes they could not be put together without copying each before
        for batch in _batches([piece for piece in pieces if piece.dim() == dim]):
            yield (torch.cat(batch) if len(batch) > 1 else batch[0]).reshape(-1)


def _batches(pieces: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """As many of them as are worked on at a time; larger ones are cut."""
    batch, elements = list[torch.Tensor](), 0
    for piece in pieces:
        most = _AT_A_TIME_ON_GPU if piece.is_cuda else _AT_A_TIME
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


def _summed(norms: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if len(norms) == 1:
        return norms[0]
    return torch.stack(norms).sum() if norms else torch.zeros((), dtype=torch.float64, device=device)


# --- which elements of large gradients each rank reads ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorPart:
    """One of several parts of each tensor's elements: together they are all of them, and none is in two."""

    number: int = 0
    parts: int = 1

    def of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The part: the whole as a vector; or runs of RUN elements, one in each row, and what may be left of another.

        Those without elements are left out. They are views where the tensor's memory allows.
        """
        whole = tensor.detach().contiguous()
        if self.parts == 1:
            return [whole.view(-1)] if whole.numel() else []
        begin, stride = self.number * RUN, self.parts * RUN
        rows = max(0, (whole.numel() - begin - RUN) // stride + 1)
        pieces = [whole.as_strided((rows, RUN), (stride, 1), whole.storage_offset() + begin)] if rows else []
        if whole.numel() > begin + rows * stride:
            pieces.append(whole.view(-1)[begin + rows * stride :])
        return pieces


#: All elements.
WHOLE_TENSOR = TensorPart()


@dataclass(frozen=True, slots=True)
class Rotation:
    """What the ranks look at in a step: each at another part of every large tensor, and at others in the next step."""

    number: int  # of the step, from 0 on
    rank: int
    ranks: int
    elements: int  # of the whole model

    def of(self, elements: int, number: int) -> tuple[TensorPart, float] | None:
        """The part of a tensor, and how often what is found of it counts; None if it is another rank's turn.

        With that, the sum over ranks estimates what one rank would find of the whole tensor, without bias where all of
        them look at the same, or at what is alike on average.
        """
        if elements < LEAST_OF_TENSOR:
            return (WHOLE_TENSOR, 1.0) if (self.number + number) % self.ranks == self.rank else None
        times = max(1, min(self.elements // ENOUGH, elements // LEAST_OF_TENSOR))
        # Rows of matrices are often a power of two long, or a small multiple of one. Of an even number of parts a turn
        # would look at the same few columns of every row, and in most turns at none of those with large gradients.
        times -= 1 - times % 2
        parts = times * self.ranks
        # Another part of each tensor: layers of a model have large gradients in the same places.
        turn = self.number + number
        return TensorPart((self.rank * times + turn * _stride(times, parts)) % parts, parts), float(times)


@cache
def _stride(times: int, parts: int) -> int:
    """From the part of a turn to that of the next one: any few turns are spread evenly over the tensor.

    Of neighbouring parts many turns would look at the same rows, and then for long at none of them. It comes to all
    parts, and with the other ranks to all in ``times`` turns, in an order that depends on ``times`` alone.
    """
    golden = round(times * (math.sqrt(5) - 1) / 2)
    near = range(max(1, golden - _NEAR), min(times, golden + _NEAR) + 1)
    stride = min((each for each in near if math.gcd(each, times) == 1), key=lambda each: _worst_quotient(each, times))
    while math.gcd(stride, parts) > 1:
        stride += times
    return stride


def _worst_quotient(stride: int, times: int) -> int:
    """The largest one in the continued fraction of stride / times: the larger it is, the closer some few turns lie."""
    worst = 0
    while stride:
        times, (quotient, stride) = stride, divmod(times, stride)
        worst = max(worst, quotient)
    return worst
