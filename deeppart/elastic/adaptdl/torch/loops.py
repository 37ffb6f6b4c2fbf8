"""The loop over a data loader that is under way: its place, its batch, and when it ends."""

from __future__ import annotations

import collections
import contextlib
import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from deeppart.elastic.told import EXIT_CODE
from deeppart.errors import DeeppartWarning, warn_caller
from deeppart.plan.goodput.optimum import WORTHWHILE

from .. import env
from .._signal import get_exit_flag, listen
from ..checkpoint import State, load_state, save_all_states
from ..collective import allreduce_async, broadcast
from ..errors import UsageError
from ..reducer import Future
from ._metrics import get_goodput_fn, profile_step_commit, profile_step_start, set_batch_size
from .epoch import current_epoch, finished_epochs


class AdaptiveDataLoaderHelper:
    """What a data loader of any kind needs to be elastic; :class:`AdaptiveDataLoaderMixin` has one."""

    #: Epoch -> loops over loaders that were begun in it, whatever the loader.
    _position: ClassVar[collections.Counter[int | None]] = collections.Counter()
    _training: ClassVar[AdaptiveDataLoaderHelper | None] = None
    _current: ClassVar[AdaptiveDataLoaderHelper | None] = None

    def __init__(self, batch_size: int = 1) -> None:
        self.batch_size = batch_size
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: tuple[int | None, int | None] | None = None
        self._gradient_accumulation = False
        self._state = _LoaderState()
        load_state(self._state)
        self._accum_count = 0
        self._skips = False
        self._to_end: Future | None = None

    # --- the place ----------------------------------------------------------------------------------------------------

    @property
    def current_index(self) -> int | None:
        """Samples of this loop that were trained on, all replicas together; None outside of it."""
        return self._state.current_index if self._is_current else None

    @current_index.setter
    def current_index(self, index: int) -> None:
        if self._is_current:
            self._state.current_index = index

    @property
    def end_index(self) -> int:
        """For loaders of other kinds, to note the end of their data."""
        return self._state.end_index

    @end_index.setter
    def end_index(self, index: int) -> None:
        self._state.end_index = index

    @property
    def _is_current(self) -> bool:
        return AdaptiveDataLoaderHelper._current is self

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The loop: every iteration over a loader is within it."""
        if AdaptiveDataLoaderHelper._current is not None:
            raise UsageError("a loop over a data loader begins in another one", todo="end the outer loop first")
        epoch, state = current_epoch(), self._state
        AdaptiveDataLoaderHelper._current = self
        self._skips = False
        try:
            yield
        finally:
            if not self._skips:  # else the place is that of a later loop over this loader
                state.current_index = state.end_index = 0
                state.last_position[epoch] = self._position[epoch]
            self._position[epoch] += 1
            AdaptiveDataLoaderHelper._current = None

    def skipdone(self) -> bool:
        """Whether this loop was over before the job was started again; asked once, at its beginning."""
        epoch = current_epoch()
        self._skips = self._position[epoch] <= self._state.last_position.get(epoch, -1)
        return self._skips

    def check_length(self, length: int) -> None:
        """Note the length of the data set."""
        if self._state.current_index and self._state.length not in (None, length):
            raise UsageError(
                "the data set has another length than when the checkpoint was made",
                expected=f"{self._state.length:,} samples",
                found=f"{length:,}",
            )
        self._state.length = length

    # --- the batch ----------------------------------------------------------------------------------------------------

    @property
    def current_local_bsz(self) -> int:
        """Samples of a micro-batch of a replica."""
        return self._state.current_local_bsz

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a step beside the last one."""
        return self._state.accumulation_steps

    @property
    def current_batch_size(self) -> int:
        """Samples of a step, all replicas together."""
        return self.current_local_bsz * (self.accumulation_steps + 1) * env.num_replicas()

    def is_accum_step(self) -> bool:
        """Whether the gradients of this micro-batch are accumulated."""
        return self._accum_count < self.accumulation_steps

    def is_optim_step(self) -> bool:
        """Whether the optimizer makes a step after this micro-batch."""
        return not self.is_accum_step()

    @property
    def training(self) -> bool:
        """Whether it is the loader that trains; one of them is."""
        return self is AdaptiveDataLoaderHelper._training

    @property
    def may_train(self) -> bool:
        """Whether no other loader trains."""
        return AdaptiveDataLoaderHelper._training in (None, self)

    def train(self) -> None:
        """Make it the loader that trains, if none is."""
        if AdaptiveDataLoaderHelper._training is None:
            AdaptiveDataLoaderHelper._training = self
        set_batch_size(self.batch_size, self.max_batch_size, self.local_bsz_bounds, self._gradient_accumulation)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the batch follow what the training measures of itself."""
        least, most = local_bsz_bounds or (None, None)
        whole = isinstance(max_batch_size, int) and max_batch_size >= self.batch_size
        if not whole or (least or 0) > self.batch_size or (most is not None and most < self.batch_size):
            raise UsageError(
                "the first batch is not within the bounds of batches",
                expected="least local <= batch_size <= most local, and batch_size <= max_batch_size",
                found=f"batch_size {self.batch_size}, max_batch_size {max_batch_size!r}, local {local_bsz_bounds}",
            )
        self.max_batch_size, self.local_bsz_bounds = max_batch_size, local_bsz_bounds
        self._gradient_accumulation = gradient_accumulation
        self.train()

    def sync_local_bsz(self) -> int:
        """Decide the batch of the next pass, on replica 0 for all (collective); returns that of a micro-batch."""
        state, goodput = self._state, get_goodput_fn()
        if self.max_batch_size is None or goodput is None:
            state.current_local_bsz, state.accumulation_steps = math.ceil(self.batch_size / env.num_replicas()), 0
        else:
            size = env.num_nodes(), env.num_replicas()
            best, local, accumulation = goodput.optimize(
                *size, self.max_batch_size, self.local_bsz_bounds, self._gradient_accumulation
            )
            now = 0.0
            if state.current_local_bsz and self.current_batch_size >= self.batch_size:
                now = goodput(*size, state.current_local_bsz, state.accumulation_steps)
            if best > now * (1 + WORTHWHILE):
                state.current_local_bsz, state.accumulation_steps = local, accumulation
        chosen = broadcast((state.current_local_bsz, state.accumulation_steps))
        state.current_local_bsz, state.accumulation_steps = chosen
        return state.current_local_bsz

    _sync_local_bsz = sync_local_bsz  # AdaptDL's name, for loaders that were written for it

    # --- the iteration ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def profile(self, commit: bool) -> Iterator[None]:
        """One iteration (collective). If any replica was told to end in the one before, all save and end here."""
        listen()
        if self._to_end is not None and self._to_end.result():
            if env.checkpoint_path() is None and env.replica_rank() == 0:
                warn_caller(
                    "told to end, and no checkpoint is made: neither ADAPTDL_CHECKPOINT_PATH nor "
                    "DEEPPART_PERSISTENT_DIR names a directory. Started again, the training begins anew",
                    DeeppartWarning,
                )
            save_all_states()
            sys.exit(EXIT_CODE)
        self._to_end = allreduce_async(get_exit_flag(), lambda a, b: a or b)
        profile_step_start(self.current_local_bsz)
        yield
        if commit:
            profile_step_commit(self.is_accum_step())
        self._accum_count = 0 if self.is_optim_step() else self._accum_count + 1

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch's sizes to a ``SummaryWriter``."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else f"{tag_prefix}/"
        writer.add_scalar(f"{prefix}Total_Batch_Size", self.current_batch_size, global_step)
        writer.add_scalar(f"{prefix}Local_Batch_Size", self.current_local_bsz, global_step)
        writer.add_scalar(f"{prefix}Accumulation_Steps", self.accumulation_steps, global_step)


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The loader of the loop that is under way; None outside of loops."""
    return AdaptiveDataLoaderHelper._current


class _LoaderState(State):
    """The place of a loader; loaders are made in the same order on every replica."""

    #: Epoch -> loaders that were made in it.
    made: ClassVar[collections.Counter[int | None]] = collections.Counter()

    def __init__(self) -> None:
        if current_dataloader() is not None:
            raise UsageError("a data loader is made within a loop over another one", todo="make it before the loop")
        self.epoch = current_epoch()
        super().__init__(f"adaptdl-dataloader-epoch{self.epoch}-{self.made[self.epoch]}")
        self.made[self.epoch] += 1
        self.current_index = 0
        self.end_index = 0
        self.last_position: dict[int | None, int] = {}
        self.length: int | None = None
        self.current_local_bsz = 0
        self.accumulation_steps = 0

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump((self.current_index, self.end_index, self.last_position, self.length), fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        saved = pickle.load(fileobj)
        self.current_index, self.end_index, self.last_position, self.length = saved

    def outdated(self) -> bool:
        return self.epoch is not None and self.epoch < finished_epochs()
