"""A data loader that keeps its place when the number of ranks changes."""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from deeppart.config import check_count
from deeppart.errors import ConfigError

from .autoscale import Autoscale, bounds_of
from .data import sampler_of
from .progress import Progress, progress
from .ranks import Ranks, ranks_of_job
from .shards import ShardedDataset
from .steps import Batch, DataPosition, MicroBatch, check_ranks, from_state, to_state

#: They say which samples there are, or in which order, which is for the elastic loader to say.
_OWN = ("sampler", "batch_sampler", "shuffle", "batch_size", "drop_last")


class ElasticDataLoader:
    """Batches of a data set: every sample once in an epoch, on any number of ranks, also if it changes.

    A global step has the next ``batch_size`` samples of the epoch's order, the same ones for any number of ranks. Its
    place belongs in the checkpoint: put :data:`deeppart.elastic.progress` there, or the loader itself. A batch counts
    as seen when it is handed out; of accumulated micro-batches, all of the step when the last one is. So a checkpoint
    after the optimizer's step goes on with the next batch.

    Within :func:`deeppart.elastic.remaining_epochs_until` a job that goes on skips the loops over this loader that were
    over, and goes on in the one that was not. Without it, each loop is an epoch.

    Args:
        dataset: with a length, and samples at 0 to length - 1; or a :class:`deeppart.elastic.ShardedDataset`.
        batch_size: samples of a step, all ranks together. They may have different numbers of them.
        shuffle: a new order in each epoch, of samples or of shards.
        seed: of the order.
        drop_last: leave out the samples that do not fill a step.
        accumulation: micro-batches beside the last one of a step.
        name: in a checkpoint; by default by the order in which loaders are made.
        loader: class that loads them: ``torch.utils.data.DataLoader`` or torchdata's ``StatefulDataLoader``.
        progress: of the training; by default the process's.
        ranks: who trains; by default those of torch.distributed, or of the launcher.
        **options: of the DataLoader: ``num_workers``, ``collate_fn``, ``pin_memory``...

    Raises:
        ConfigError: there are fewer samples in a step than ranks, or fewer lanes; an option is this loader's own.

    Example:
        >>> import torch
        >>> from deeppart.elastic import ElasticDataLoader, Progress
        >>> data = torch.utils.data.TensorDataset(torch.arange(10))
        >>> loader = ElasticDataLoader(data, batch_size=4, shuffle=False, progress=Progress())
        >>> for (batch,) in loader:
        ...     print(batch.tolist(), loader.weight)
        [0, 1, 2, 3] 1.0
        [4, 5, 6, 7] 1.0
        [8, 9] 1.0
    """

    def __init__(
        self,
        dataset: Dataset[Any] | ShardedDataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulation: int = 0,
        name: str | None = None,
        loader: Callable[..., Any] = DataLoader,
        progress: Progress = progress,
        ranks: Ranks | None = None,
        **options: Any,
    ) -> None:
        refuse_own(options)
        self.dataset = dataset
        self._ranks = ranks if ranks is not None else ranks_of_job()
        batch = Batch(batch_size, accumulation)
        check_ranks(batch, self._ranks.size)
        self._shuffle, self._drop_last = shuffle, drop_last
        self._sampler = sampler_of(dataset, seed=seed, ranks=self._ranks, shuffle=shuffle, drop_last=drop_last)
        self._inner = loader(self._sampler.reading, batch_sampler=self._sampler, **with_calm_workers(options))
        self._ahead = steps_ahead(options)
        self._asked = batch
        self._position = DataPosition(0, 0, 0, batch)
        #: Of this epoch: loops that were begun, and passes that were over within a batch of another loader. Those are
        #: not gone through again by a job that goes on after that batch.
        self._begun = self._nested = self._turn = 0
        self._micro_batch: MicroBatch | None = None
        self._step_weight = 0.0
        self._left = False
        self._progress = progress
        self._autoscale: Autoscale | None = None
        self._clock = time.perf_counter
        self.name = progress.name_for("loader", name)
        progress.join(self.name, self)

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> Batch:
        """That of the next step."""
        return self._position.batch

    @property
    def epoch(self) -> int:
        """The epoch that it is in, or that comes next."""
        return self._position.epoch

    @property
    def seen(self) -> int:
        """Samples that were handed out in this pass, to all ranks, in steps that are complete."""
        return self._position.seen

    @property
    def ranks(self) -> Ranks:
        """Who trains."""
        return self._ranks

    # --- the batch that was handed out last ---------------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """What to multiply the mean loss of this batch by, where gradients are averaged over ranks.

        :class:`deeppart.elastic.ElasticDataParallel` does it. With DistributedDataParallel alone:
        ``(loss * loader.weight).backward()``. It is 1 where all ranks have the same number of samples, without
        accumulation; 0 for a filler, in a last step that has fewer samples than there are ranks.
        """
        return self._current().weight

    @property
    def counted(self) -> int:
        """Samples of this batch that are to be counted. Of a filler none are."""
        return self._current().counted

    @property
    def ends_step(self) -> bool:
        """True if gradients are to be exchanged after this batch, and the optimizer makes its step."""
        return self._current().ends_step

    @property
    def step_weight(self) -> float:
        """The weights of this rank's batches in the step under way, up to this one."""
        self._current()
        return self._step_weight

    @property
    def step_size(self) -> int:
        """Samples of the step under way, all ranks together."""
        return self._current().size

    @property
    def whole_size(self) -> int:
        """Samples of a step with this batch; the last one of an epoch may have fewer."""
        return self._current().whole

    @property
    def base_size(self) -> int:
        """Samples of a step as the loader was made."""
        return self._asked.size

    # --- what a user may change ---------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, for loops that count epochs themselves; to the one that it is in, nothing changes."""
        if epoch != self._position.epoch:
            self.start_over(epoch)

    def start_over(self, epoch: int | None = None) -> None:
        """Forget the place in the epoch.

        Args:
            epoch: to begin with; by default the one that it is in.
        """
        self._position = self._position.next_pass(self._position.epoch if epoch is None else epoch, 0)
        self._left, self._begun, self._nested, self._micro_batch = False, 0, 0, None

    def set_batch(self, size: int, accumulation: int = 0) -> int:
        """Change the batch (every rank has to, after the same step).

        It holds from the next step on; with workers, after those steps that may be under way in them.

        Returns:
            samples of this pass after which it holds.

        Raises:
            ConfigError: there are fewer samples in a step than ranks; the loader has taken more steps in advance than
                its options say.
        """
        batch = Batch(size, accumulation)
        check_ranks(batch, self._ranks.size)
        position, at = self._position, self._position.seen
        if self._micro_batch is not None:
            at = self._micro_batch.seen
            for _ in range(self._ahead):
                at += position.batch_at(at).size
            at = min(at, self._sampler.length)
            taken = self._sampler.handed_out[-1].seen if self._sampler.handed_out else 0
            if taken > at:
                raise ConfigError(
                    "the batch cannot change: the loader has taken more steps in advance than its options say",
                    expected=f"at most {self._ahead} steps, {at:,} samples",
                    found=f"{taken:,} samples",
                    where=f"loader {self.name}, rank {self._ranks.rank}",
                )
        self._position = position.decided(at, batch)
        self._sampler.decide(self._position)
        return at

    def autoscale_batch_size(
        self,
        most: int,
        local_bounds: tuple[int | None, int | None] | None = None,
        *,
        gradient_accumulation: bool = False,
        every: int = 100,
        profile_dir: str | Path | None = None,
    ) -> None:
        """Let the batch follow what training measures of itself (collective; needs scipy and ElasticDataParallel).

        Every so many steps rank 0 looks for the batch with the most goodput (:func:`deeppart.plan.goodput.best_step`).
        If it has more than 5 % more than the batch in use, all ranks change to it.

        Args:
            most: samples of a step, all ranks together.
            local_bounds: least and most samples of a micro-batch of a rank; None for no bound.
            gradient_accumulation: true if a step may have several micro-batches.
            every: steps from one decision to the next.
            profile_dir: the persistent directory, where rank 0 keeps what it measures for ``deeppart advise``.

        Raises:
            ConfigError: no batch fits the bounds; ``every`` is no number of steps; it has been called before.
        """
        if self._autoscale is not None:
            raise ConfigError("the batch of this loader follows the training already", where=f"loader {self.name}")
        check_count("every", every, "steps")
        bounds = bounds_of(self._asked, self._ranks.size, most, local_bounds, accumulate=gradient_accumulation)
        directory = None if profile_dir is None else Path(profile_dir)
        self._autoscale = Autoscale(bounds, self._ranks, every, directory)
        self._progress.join(self._progress.name_for("autoscale", f"{self.name}-autoscale"), self._autoscale)
        pieces = math.ceil(self._position.batch.size / self._ranks.size / bounds.most_local)
        if pieces > self._position.batch.accumulation + 1:
            self.set_batch(self._position.batch.size, pieces - 1)

    # --- iteration ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of a whole pass with this batch. Loops have more batches if gradients are accumulated.

        Collective where shards have to be counted.
        """
        length = self._sampler.known_length
        if length is None:
            length = self._sampler.checked_length(self._ranks, self.name)
        steps = length / self._position.batch.size
        return math.floor(steps) if self._drop_last else math.ceil(steps)

    def __iter__(self) -> Iterator[Any]:
        """The batches of this rank: the rest of the pass that is under way, or a new one.

        A loop that is left by ``break`` or by an error of the training is over; one that the data set has failed is
        not: the next loop begins with the step that could not be loaded. (Within a batch of another loader, as of a
        validation, each loop is a pass of its own.)
        """
        in_loop = self._enter()
        outer, micro_batch = self._progress.loader, None
        of_outer = None if outer is None else outer._micro_batch
        if of_outer is None:
            self._begun += 1
            if in_loop and self._begun <= self._position.passes - self._nested:
                return
        self._sampler.begin(self._position)
        ended, loading, asked_at = False, True, None
        try:
            for batch in self._inner:
                loading = False
                micro_batch = self._sampler.handed_out.popleft()
                begins = self._micro_batch is None or self._micro_batch.ends_step
                self._micro_batch = micro_batch
                self._step_weight = micro_batch.weight + (0.0 if begins else self._step_weight)
                if micro_batch.ends_step:
                    self._position = self._position.at(micro_batch.seen)
                self._progress.loader = self
                yield batch
                if self._micro_batch is not micro_batch:
                    raise self._moved()
                asked_at = self._after_batch(micro_batch, asked_at)
                loading = True
            ended, loading = True, False
        finally:
            # Within a batch of another loader: that one is still under way. (Both in a zip() have had more since.)
            nested = of_outer is not None and outer is not None and outer._micro_batch is of_outer
            self._progress.loader = outer if nested else None
            if self._micro_batch is micro_batch:  # otherwise its place was changed within the loop, and holds
                over = ended or nested
                self._micro_batch, self._left = None, not (over or loading)
                if over:
                    self._end_pass(in_loop=in_loop, nested=nested)
            self._sampler.close()

    def _after_batch(self, micro_batch: MicroBatch, asked_at: float | None) -> float | None:
        """The next batch is requested: measure the duration of the last one, and decide on the size of the next."""
        if self._autoscale is None:
            return None
        now = self._clock()
        if asked_at is not None:
            self._autoscale.times.note(micro_batch, now - asked_at)
        if not micro_batch.ends_step:
            return now
        changed = self._autoscale.after_step(self._position.batch_at(self._sampler.length), self._progress.trained)
        if changed is None:
            return now
        self.set_batch(changed.size, changed.accumulation)
        return None

    def _enter(self) -> bool:
        """Come to the epoch that the training is in; returns whether it counts them."""
        if self._micro_batch is not None:
            raise ConfigError(
                "a loop over a loader begins in another one over the same loader",
                where=f"loader {self.name}",
                todo="use a loader for each",
            )
        self._sampler.checked_length(self._ranks, self.name)
        epoch = self._progress.entered(self.name, self)
        if self._turn != self._progress.turn:
            self._turn, self._begun = self._progress.turn, 0
        if epoch is not None and epoch != self._position.epoch:
            self.start_over(epoch)
        elif self._left:
            self._end_pass(in_loop=epoch is not None, nested=False)
        self._left = False
        return epoch is not None

    def _end_pass(self, *, in_loop: bool, nested: bool) -> None:
        position = self._position
        if not in_loop:
            self._position = position.next_pass(position.epoch + 1, 0)
            return
        self._position = position.next_pass(position.epoch, position.passes + 1)
        if nested:
            self._nested += 1
        else:
            self._begun = self._position.passes - self._nested

    def _moved(self) -> ConfigError:
        return ConfigError(
            "the place of a loader was changed while a loop over it is under way",
            where=f"loader {self.name}",
            todo="leave the loop after load_state_dict() or start_over(): the next one begins there",
        )

    def _current(self) -> MicroBatch:
        if self._micro_batch is None:
            raise ConfigError(
                "no batch is under way", where=f"loader {self.name}", todo="ask within the loop over the loader"
            )
        return self._micro_batch

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Its place: small values, the same on every rank."""
        saved = to_state(
            self._position, self._asked, self._sampler.seed, self._sampler.known_length, shuffle=self._shuffle
        )
        return saved | {"nested": self._nested} | self._sampler.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place; the next loop does. If the loader was made with another batch than then, this one holds.

        Raises:
            RestoreError: the data set has another length or order than when the checkpoint was made, or other shards.
            ConfigError: its steps have fewer samples than there are ranks now.
        """
        self._sampler.take(state, self.name)
        position, seed = from_state(
            state, self._asked, self._sampler.known_length, shuffle=self._shuffle, name=self.name
        )
        for each in (position.batch, *(batch for _, batch in position.later)):
            check_ranks(each, self._ranks.size)
        self._position, self._sampler.seed = position, seed
        self._begun = max(0, self._begun - 1) if self._turn == self._progress.turn else 0  # the one that is made again
        self._left, self._nested, self._micro_batch = False, state.get("nested", 0), None


# --- options of the DataLoader ----------------------------------------------------------------------------------------


def refuse_own(options: Mapping[str, Any]) -> None:
    """Refuse what the elastic loader decides itself."""
    for name in _OWN:
        if name in options:
            raise ConfigError(
                "a loader cannot be given this option",
                found=name,
                todo="leave it out: this loader decides which samples it has, and in which order",
            )
    if options.get("in_order") is False:
        raise ConfigError(
            "a loader cannot hand out batches in another order than it takes them",
            found="in_order=False",
            todo="leave it out: what has been seen would not be known",
        )


def steps_ahead(options: Mapping[str, Any]) -> int:
    """Steps that may be under way in the workers of a DataLoader with these options, on every rank."""
    workers, each = options.get("num_workers", 0), options.get("prefetch_factor")
    return int(workers * (2 if each is None else each) + 1) if workers else 0


def with_calm_workers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a DataLoader whose workers live through a SIGUSR1 to all processes of a job.

    Slurm (``--signal=USR1@120``) and ``kill -USR1 -PID`` send it to whole process groups. By default it would end the
    workers, and with them the rank, before that has made its checkpoint. A handler of the caller's own stays. SIGTERM
    ends workers still: torch sends it to those that do not end otherwise.
    """
    if not options.get("num_workers"):
        return dict(options)
    return {**options, "worker_init_fn": functools.partial(_begin, options.get("worker_init_fn"))}


def _begin(function: Callable[[int], None] | None, worker: int) -> None:
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if function is not None:
        function(worker)
