"""A data loader that keeps its position when the number of ranks changes."""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from deeppart.config import check_count
from deeppart.errors import ConfigError

from .autoscale import Autoscale, make_bounds
from .data import make_sampler
from .epochs import Progress, progress
from .ranks import Ranks, ranks_of_job
from .shards import ShardedDataset
from .steps import Batch, DataPosition, MicroBatch, check_ranks, from_state, to_state

#: Options of DataLoader that select or order samples.
_SAMPLING_OPTIONS = ("sampler", "batch_sampler", "shuffle", "batch_size", "drop_last")


class ElasticDataLoader:
    """Batches of a data set: every sample once per epoch, also if the number of ranks changes.

    A global step has the next ``batch_size`` samples of the epoch's order, independent of the number of ranks. Save the
    position with the checkpoint: put :data:`deeppart.elastic.progress` into the state, or the loader itself. A batch
    counts as seen when it is handed out, and accumulated micro-batches when the last one of the step is, so a
    checkpoint after the optimizer's step continues with the next batch.

    Within :func:`deeppart.elastic.remaining_epochs_until` a restarted job skips finished loops over this loader and
    continues the unfinished one. Without it, each loop is an epoch.

    Args:
        dataset: a map-style data set, or a :class:`deeppart.elastic.ShardedDataset`.
        batch_size: samples of a step over all ranks; need not be a multiple of their number.
        shuffle: a new order of samples or shards in each epoch.
        seed: of the order.
        drop_last: leave out samples at the end that do not fill a step.
        accumulation: micro-batches per step and rank before the last one.
        name: in checkpoints; by default numbered in order of creation.
        loader: ``torch.utils.data.DataLoader`` or torchdata's ``StatefulDataLoader``.
        progress: of the training; by default that of the process.
        ranks: by default those of torch.distributed, or of the launcher.
        **options: of the DataLoader: ``num_workers``, ``collate_fn``, ``pin_memory``...

    Raises:
        ConfigError: a step has fewer samples than there are ranks, or there are fewer lanes; an option selects or
            orders samples.

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
        _check_options(options)
        self.dataset = dataset
        self.ranks = ranks if ranks is not None else ranks_of_job()
        batch = Batch(batch_size, accumulation)
        check_ranks(batch, self.ranks.size)
        self._shuffle, self._drop_last = shuffle, drop_last
        self._sampler = make_sampler(dataset, seed=seed, ranks=self.ranks, shuffle=shuffle, drop_last=drop_last)
        self._inner = loader(self._sampler.dataset, batch_sampler=self._sampler, **_with_worker_init(options))
        self._configured = batch
        self._position = DataPosition(0, 0, 0, batch)
        #: Of this epoch: started loops, and passes within a batch of another loader. A job restarted after that batch
        #: does not repeat the latter.
        self._started = self._nested = self._turn = 0
        self._micro_batch: MicroBatch | None = None
        self._step_weight = 0.0
        self._interrupted = False  # the last loop was left before its end
        self._progress = progress
        self._autoscale: Autoscale | None = None
        self._clock = time.perf_counter
        self.name = progress.name_for("loader", name)
        progress.join(self.name, self)

    # --- position -----------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> Batch:
        """The batch of the next step."""
        return self._position.batch

    @property
    def epoch(self) -> int:
        """The current or next epoch."""
        return self._position.epoch

    @property
    def seen(self) -> int:
        """Samples of this pass in completed steps, over all ranks."""
        return self._position.seen

    # --- the current batch --------------------------------------------------------------------------------------------

    @property
    def weight(self) -> float:
        """Factor for the mean loss of this batch if gradients are averaged over ranks.

        :class:`deeppart.elastic.ElasticDataParallel` applies it. With DistributedDataParallel alone:
        ``(loss * loader.weight).backward()``. It is 1 if all ranks have the same number of samples and gradients are
        not accumulated; 0 for a filler, in a last step with fewer samples than ranks.
        """
        return self._current().weight

    @property
    def counted(self) -> int:
        """Samples of this batch to count in statistics; 0 for a filler."""
        return self._current().counted

    @property
    def ends_step(self) -> bool:
        """Whether gradients are reduced after this batch and the optimizer steps."""
        return self._current().ends_step

    @property
    def step_weight(self) -> float:
        """Sum of the weights of this rank's batches in the current step, up to this one."""
        self._current()
        return self._step_weight

    @property
    def step_size(self) -> int:
        """Samples of the current step over all ranks."""
        return self._current().size

    @property
    def full_size(self) -> int:
        """Samples of a step with this batch size; the last one of an epoch may have fewer."""
        return self._current().full_size

    @property
    def base_size(self) -> int:
        """The ``batch_size`` that the loader was made with."""
        return self._configured.size

    # --- changes ------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, for loops that count epochs themselves; no effect in that epoch."""
        if epoch != self._position.epoch:
            self.start_over(epoch)

    def start_over(self, epoch: int | None = None) -> None:
        """Go to the beginning of an epoch, by default the current one."""
        self._position = self._position.next_pass(self._position.epoch if epoch is None else epoch, 0)
        self._interrupted, self._started, self._nested, self._micro_batch = False, 0, 0, None

    def set_batch(self, size: int, accumulation: int = 0) -> int:
        """Change the batch from the next step on, on every rank after the same step.

        A loop begins to load again there, with new workers: what they had prefetched is dropped.

        Returns:
            samples of this pass after which it takes effect.

        Raises:
            ConfigError: a step has fewer samples than there are ranks.
        """
        batch = Batch(size, accumulation)
        check_ranks(batch, self.ranks.size)
        self._position = replace(self._position, batch=batch)
        return self._position.seen if self._micro_batch is None else self._micro_batch.seen

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bounds: tuple[int | None, int | None] | None = None,
        *,
        gradient_accumulation: bool = False,
        every: int = 100,
        profile_dir: str | Path | None = None,
    ) -> None:
        """Adapt the batch size to the measured gradient noise and step times (collective).

        Every ``every`` steps rank 0 looks for the batch with the highest goodput
        (:func:`deeppart.elastic.goodput.best_step`). All ranks change to it if it is more than 5 % better than the
        current one. Needs scipy and ElasticDataParallel.

        Args:
            max_batch_size: largest number of samples of a step, over all ranks.
            local_bounds: smallest and largest number of samples of a micro-batch; None for no bound.
            gradient_accumulation: whether a step may have several micro-batches.
            every: steps between decisions.
            profile_dir: the persistent directory, where rank 0 writes measurements for ``deeppart advise``.

        Raises:
            ConfigError: no batch fits the bounds; ``every`` is invalid; the method was called before.
        """
        if self._autoscale is not None:
            raise ConfigError("autoscale_batch_size() was called already", where=f"loader {self.name}")
        check_count("every", every, "steps")
        bounds = make_bounds(
            self._configured, self.ranks.size, max_batch_size, local_bounds, accumulate=gradient_accumulation
        )
        directory = None if profile_dir is None else Path(profile_dir)
        self._autoscale = Autoscale(bounds, self.ranks, every, directory)
        name, stays = f"{self.name}-autoscale", self.name not in self._progress.of_epoch
        self._progress.join(self._progress.name_for("autoscale", name), self._autoscale, stays=stays)
        pieces = math.ceil(self._position.batch.size / self.ranks.size / bounds.most_local)
        if pieces > self._position.batch.accumulation + 1:
            self.set_batch(self._position.batch.size, pieces - 1)

    # --- iteration ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of a whole pass with the current batch (with accumulation, loops have more batches).

        Collective if shards have to be counted.
        """
        length = self._sampler.known_length
        if length is None:
            length = self._sampler.check_length(self.ranks, self.name)
        steps = length / self._position.batch.size
        return math.floor(steps) if self._drop_last else math.ceil(steps)

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches of the rest of the current pass, or of a new one.

        A loop left by ``break`` or an error of the training ends its pass. After an error of the data set, the next
        loop begins with the step that could not be loaded. Within a batch of another loader, as for validation, each
        loop is a pass.
        """
        in_epoch = self._enter()
        outer, micro_batch = self._progress.loader, None
        outer_micro_batch = None if outer is None else outer._micro_batch
        if outer_micro_batch is None:
            self._started += 1
            if in_epoch and self._started <= self._position.passes - self._nested:
                return
        ended, loading, requested_at = False, True, None
        try:
            while not ended:
                now = self._position.batch
                self._sampler.begin(self._position)
                for batch in self._inner:
                    loading = False
                    micro_batch = self._sampler.handed_out.popleft()
                    begins = self._micro_batch is None or self._micro_batch.ends_step
                    self._micro_batch = micro_batch
                    self._step_weight = micro_batch.weight + (0.0 if begins else self._step_weight)
                    if micro_batch.ends_step:
                        self._position = replace(self._position, seen=micro_batch.seen)
                    self._progress.loader = self
                    yield batch
                    if self._micro_batch is not micro_batch:
                        raise ConfigError(
                            "the position of a loader was changed within a loop over it",
                            where=f"loader {self.name}",
                            todo="leave the loop after load_state_dict() or start_over(): the next one begins there",
                        )
                    requested_at = self._after_batch(micro_batch, requested_at)
                    loading = True
                    if micro_batch.ends_step and self._position.batch != now:
                        break
                else:
                    ended, loading = True, False
        finally:
            # If the outer loader has a new batch, the two are zipped and not nested.
            nested = outer_micro_batch is not None and outer is not None and outer._micro_batch is outer_micro_batch
            self._progress.loader = outer if nested else None
            if self._micro_batch is micro_batch:  # otherwise the position was changed within the loop, and holds
                over = ended or nested
                self._micro_batch, self._interrupted = None, not (over or loading)
                if over:
                    self._end_pass(in_epoch=in_epoch, nested=nested)
            self._sampler.end_pass()

    def _after_batch(self, micro_batch: MicroBatch, requested_at: float | None) -> float | None:
        """Record the time of the last batch, adapt the batch size, and return the time now, if it is measured."""
        if self._autoscale is None:
            return None
        now = self._clock()
        if requested_at is not None:
            self._autoscale.record(micro_batch, now - requested_at)
        if not micro_batch.ends_step:
            return now
        changed = self._autoscale.after_step(self._position.batch, self._progress.trained)
        if changed is None:
            return now
        self.set_batch(changed.size, changed.accumulation)
        return None

    def _enter(self) -> bool:
        """Go to the current epoch of the progress, and return whether there is one."""
        if self._micro_batch is not None:
            raise ConfigError(
                "a loop over a loader begins within another loop over it",
                where=f"loader {self.name}",
                todo="use a loader for each",
            )
        self._sampler.check_length(self.ranks, self.name)
        self._progress.check_member(self.name, self)
        epoch = self._progress.current_epoch
        if self._turn != self._progress.turn:
            self._turn, self._started = self._progress.turn, 0
        if epoch is not None and epoch != self._position.epoch:
            self.start_over(epoch)
        elif self._interrupted:
            self._end_pass(in_epoch=epoch is not None, nested=False)
        self._interrupted = False
        return epoch is not None

    def _end_pass(self, *, in_epoch: bool, nested: bool) -> None:
        position = self._position
        if not in_epoch:
            self._position = position.next_pass(position.epoch + 1, 0)
            return
        self._position = position.next_pass(position.epoch, position.passes + 1)
        if nested:
            self._nested += 1
        else:
            self._started = self._position.passes - self._nested

    def _current(self) -> MicroBatch:
        if self._micro_batch is None:
            raise ConfigError(
                "there is no current batch", where=f"loader {self.name}", todo="use this within the loop over it"
            )
        return self._micro_batch

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position as plain values, the same on every rank."""
        saved = to_state(
            self._position, self._configured, self._sampler.seed, self._sampler.known_length, shuffle=self._shuffle
        )
        return saved | {"nested": self._nested} | self._sampler.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position with the next loop. A changed ``batch_size`` replaces the saved batch.

        Raises:
            RestoreError: the data set has another length, order or list of shards than in the checkpoint.
            ConfigError: a step has fewer samples than there are ranks.
        """
        self._sampler.load_state(state, self.name)
        position, seed = from_state(
            state, self._configured, self._sampler.known_length, shuffle=self._shuffle, name=self.name
        )
        check_ranks(position.batch, self.ranks.size)
        self._position, self._sampler.seed = position, seed
        self._started = 0
        self._interrupted, self._nested, self._micro_batch = False, state.get("nested", 0), None


# --- options of the DataLoader ----------------------------------------------------------------------------------------


def _check_options(options: Mapping[str, Any]) -> None:
    for name in _SAMPLING_OPTIONS:
        if name in options:
            raise ConfigError(
                "a loader cannot be given this option",
                found=name,
                todo="leave it out: this loader selects and orders the samples",
            )
    if options.get("in_order") is False:
        raise ConfigError(
            "a loader cannot return batches out of order",
            found="in_order=False",
            todo="leave it out: the position in the data would be unknown",
        )


def _with_worker_init(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make workers ignore SIGUSR1, unless the caller has a handler.

    Slurm (``--signal=USR1@120``) and ``kill -USR1 -PID`` send it to whole process groups. By default it would end the
    workers, and so the rank before it has saved a checkpoint. SIGTERM still ends them: torch uses it to stop workers.
    """
    if not options.get("num_workers"):
        return dict(options)
    return {**options, "worker_init_fn": functools.partial(_init_worker, options.get("worker_init_fn"))}


def _init_worker(function: Callable[[int], None] | None, worker: int) -> None:
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if function is not None:
        function(worker)
