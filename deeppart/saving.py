"""Saving: what ``checkpoint()`` does before it returns, for one rank: classify, plan, capture.

Keeps what is derived from the state's structure from one checkpoint to the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch

from deeppart.comm.agreement import agree, raise_together
from deeppart.comm.base import Comm, finish
from deeppart.config import Config
from deeppart.errors import (
    DeeppartError,
    PerRankNotice,
    RanksDisagreeError,
    ReplicaDivergenceWarning,
    StateError,
    warn_caller,
)
from deeppart.levels.transfer import Staged
from deeppart.model import LEVELS
from deeppart.partition import DEFAULT_KAPPA_BYTES, partition
from deeppart.state.capture import CapturePlan, Staging, staging_bytes
from deeppart.state.classify import DIGESTS, Classified, Classifier, Layout
from deeppart.state.comparing import UNREAD
from deeppart.state.deferred import DeferredCopy
from deeppart.state.divergence import Divergence
from deeppart.state.document import PartDocument
from deeppart.state.flatten import FlatState, readable
from deeppart.state.layout import ShareLayout, lay_out, leaf_specs
from deeppart.state.lazy import LazyCapture
from deeppart.state.owners import trained_leaves
from deeppart.state.template import Template


class Saver:
    """The foreground of a save.

    Args:
        comm: channel of the training thread.
        config: the job's configuration.
        staging: memory for the share; reused by restores.

    Attributes:
        diverged: leaves that the last :meth:`agree` found to have come to differ between ranks.
    """

    def __init__(self, comm: Comm, config: Config, staging: Staging) -> None:
        self._comm = comm
        self._timeout = config.timeout
        self._mode = config.replicated
        self._kappa = DEFAULT_KAPPA_BYTES if config.kappa is None else config.kappa
        self._classifier = Classifier(comm, config.replicated, config.timeout)
        self._template = Template()
        self._staging = staging
        self._share: ShareLayout | None = None
        self._capture: CapturePlan | None = None
        self._lazy = LazyCapture(config.timeout) if config.capture == "lazy" else None
        self._flat: FlatState | None = None
        self._pinned = False
        self._fresh = False
        self._turn = 0
        self._error: DeeppartError | None = None
        self.diverged: tuple[Divergence, ...] = ()

    def look(self, state: object, refusal: DeeppartError | None) -> None:
        """Take the state apart (local). Errors are kept until the ranks have heard of them in :meth:`agree`.

        Args:
            refusal: why this rank cannot take part anyway, or None.
        """
        self._error, self._flat, self.diverged = refusal, None, ()
        if refusal is not None:
            return
        try:
            self._flat = self._template.flatten(state)
            # Stays until the ranks have planned for it, however many calls come to nothing before that.
            self._fresh = self._classifier.prepare(self._flat) or self._fresh
        except DeeppartError as error:
            self._error = error
        except Exception as error:  # from the caller's state_dict(): the other ranks are waiting to hear of it
            self._error = StateError(
                "state_dict() of an object in the state failed", found=f"{type(error).__name__}: {error}"
            )

    def agree(self, step: int, turn: int, due: frozenset[str], busy: bool) -> bool:
        """Compare the call and the state across ranks (collective); returns whether any rank is busy.

        Raises:
            RanksDisagreeError: ranks name different steps.
            StructureMismatchError: ranks hold different structures.
            DeeppartError: this rank's own error; RemoteRankError for another's.
            PeerTimeoutError: a rank did not make the call.
        """
        what = f"checkpoint(step={step})"
        self._turn = turn
        digests = self._digests(turn)
        levels = sum(1 << place for place, level in enumerate(LEVELS) if level in due)
        fields = {"step": step, "turn": turn, "levels": levels, **digests}
        flags = {"error": int(self._error is not None), "fresh": int(self._fresh or self._share is None), "busy": busy}
        agreed = agree(self._comm, fields, flags, what, self._timeout)
        if agreed.differing & {"step", "turn", "levels"}:
            self._raise_disagreement(step, what)
        if agreed.flags["error"]:
            raise_together(self._comm, self._error, what, self._timeout)
        assert self._flat is not None
        if agreed.flags["busy"]:
            return True
        if "structure" in agreed.differing:
            self._classifier.check_structure(self._flat, what)
        self._classifier.note(turn, step, saved=bool(due))
        unread_alike = UNREAD not in agreed.differing
        if agreed.differing - {UNREAD} or agreed.flags["fresh"]:
            self._renew(turn, step, bool(agreed.flags["fresh"]), what)
        else:
            self._classifier.alike(turn, unread_alike=unread_alike)
        return False

    def capture(self, step: int, turn: int) -> tuple[Staged, int, DeferredCopy | None]:
        """Copy this rank's share into staging memory (local).

        Returns:
            The staged share, how many of its bytes are this rank's own, and copies that are still to be made.

        Raises:
            MemoryError: staging memory cannot be reserved.
        """
        layout, flat, share = self._classifier.layout, self._flat, self._share
        assert layout is not None and flat is not None and share is not None
        staged = self._staging.reserve(share.nbytes, pinned=self._pinned)
        if self._capture is None or not self._capture.fits(staged):
            self._capture = CapturePlan(share, layout.types, flat.data, staged)
        later: dict[int, torch.Tensor] = {}
        if self._lazy is not None:
            later = self._lazy.later(flat, layout.types)
        left = self._capture.copy(flat, later)
        deferred = None
        if self._lazy is not None and later:
            deferred = self._lazy.defer(flat, later, left, turn, f"rank {self._comm.rank}, step {step}")
        own = sum(chunk.length for chunk in share.chunks if chunk.per_rank)
        return Staged(share, staging_bytes(staged), self._document(layout)), own, deferred

    def let_go(self) -> None:
        """Forget the state, so that nothing of it is kept alive between checkpoints."""
        self._flat = None
        self._error = None  # its traceback leads to the state too
        self._template.clear()

    def restored(self) -> None:
        """The staging memory was used for something else, and the state was written to, memory by memory."""
        self._capture = None
        self._classifier.forget_digests()

    def close(self) -> None:
        """Nothing is saved any more."""
        self._classifier.close()

    def _digests(self, turn: int) -> dict[str, int]:
        if self._error is None and self._flat is not None:
            return self._classifier.digests(self._flat, turn, fresh=self._fresh)
        return dict.fromkeys(DIGESTS, 0)

    def _document(self, layout: Layout) -> PartDocument:
        return PartDocument(
            tree=layout.tree,
            types=layout.types,
            aliases=dict(layout.aliases),
            per_rank=layout.per_rank.copy(),
            per_rank_values=layout.per_rank_values.copy(),
            values=self._classifier.values,
            with_structure=self._comm.rank == 0,
            compared=self._classifier.compared_earlier(self._turn) if self._comm.rank == 0 else (),
        )

    def _renew(self, turn: int, step: int, fresh: bool, what: str) -> None:
        """Something about the state is new: classify again, and plan again."""
        assert self._flat is not None
        found = self._classifier.classify(self._flat, turn, step, fresh, what)
        self.diverged = found.diverged
        if self._comm.rank == 0:
            self._tell(found, what)
        self._share = self._plan(what)
        if self._lazy is not None and self._classifier.layout is not None:
            self._lazy.look_after(self._share, self._classifier.layout.types)
        self._pinned = any(data.is_cuda for data in self._flat.data if isinstance(data, torch.Tensor))
        self._capture = None
        self._fresh = False

    def _tell(self, found: Classified, what: str) -> None:
        """Warn of leaves that turn out to differ between ranks."""
        if found.per_rank:
            names = _some(found.per_rank, ", ")
            warn_caller(f"these leaves differ between ranks and are saved per rank from now on: {names}", PerRankNotice)
        if found.diverged:
            warn_caller(
                f"{what}: leaves that all ranks held alike differ now. Where ranks are not meant to differ, this is a "
                "bug in training or silent data corruption. From now on they are saved per rank; what was saved since "
                "all of a leaf was last compared is suspect:"
                f"\n  {_some([str(each) for each in self.diverged], chr(10) + '  ')}",
                ReplicaDivergenceWarning,
            )

    def _plan(self, what: str) -> ShareLayout:
        """This rank's share. Every rank computes the same plan; only the sizes of per-rank leaves are exchanged."""
        layout, flat = self._classifier.layout, self._flat
        assert layout is not None and flat is not None
        sized = [i for i, kind in enumerate(layout.types) if kind.nbytes and i not in layout.aliases]
        own = [i for i in sized if layout.per_rank[i]]
        shared = [i for i in sized if not layout.per_rank[i]]
        carried = np.zeros(self._comm.size, dtype=np.int64)
        carried[self._comm.rank] = sum(layout.types[i].nbytes for i in own) + int(self._kappa) * len(own)
        if layout.per_rank.any():
            carried = finish(self._comm, self._comm.maximum(carried), what, self._timeout)
        paths = [readable(leaf.path) for leaf in flat.arrays]
        specs = leaf_specs(layout.types, paths, shared)
        plan = partition(specs, self._comm.size, kappa=self._kappa, preload=carried.astype(np.float64))
        spans = [(shared[span.leaf], span.start, span.length) for span in plan.share(self._comm.rank).spans]
        return lay_out(layout.types, spans, own, trained_leaves(flat))

    def _raise_disagreement(self, step: int, what: str) -> None:
        texts = finish(self._comm, self._comm.allgather(json.dumps(step).encode()), what, self._timeout)
        steps = [json.loads(text) for text in texts]
        found = ", ".join(f"rank {rank}: {theirs}" for rank, theirs in enumerate(steps[:8]))
        raise RanksDisagreeError(
            f"{what}: ranks made different calls",
            expected="the same step on every rank, and every rank making every call",
            found=f"{found}{' ...' if len(steps) > 8 else ''}"
            + (
                "; the same step, but not the same number of calls, or not all with `force`"
                if len(set(steps)) == 1
                else ""
            ),
            where=f"rank {self._comm.rank}",
            todo="checkpoint() is collective: call it on all ranks, with the same arguments",
        )


def _some(texts: Sequence[str], separator: str) -> str:
    """The first eight, and how many there are."""
    more = f"{separator}... ({len(texts)} in all)" if len(texts) > 8 else ""
    return separator.join(texts[:8]) + more
