"""Saving: what ``checkpoint()`` does before it returns, for one rank: classify, plan, capture.

Keeps what is derived from the state's structure from one checkpoint to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from deeppart.comm.agreement import agree, raise_together
from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.config import Config
from deeppart.errors import (
    CheckpointError,
    DeeppartError,
    DeeppartWarning,
    PerRankNotice,
    RanksDisagreeError,
    ReplicaDivergenceWarning,
    StateError,
    StructureMismatchError,
    warn_caller,
)
from deeppart.model import LEVELS
from deeppart.partition import DEFAULT_KAPPA_BYTES, partition
from deeppart.save.transfer import Staged
from deeppart.state.capture.deferred import DeferredCopy
from deeppart.state.capture.layout import ShareLayout, lay_out, leaf_specs
from deeppart.state.capture.lazy import LazyCapture
from deeppart.state.capture.plan import CapturePlan, Staging, staging_bytes
from deeppart.state.compare.classify import DIGESTS, Classified, Classifier
from deeppart.state.compare.comparing import UNREAD
from deeppart.state.compare.derived import Layout
from deeppart.state.compare.divergence import Divergence
from deeppart.state.compare.owners import trained_leaves
from deeppart.state.compare.reconciling import reconcile
from deeppart.state.compare.trailing import TrailingSlices
from deeppart.state.document.apart import encode_own
from deeppart.state.document.encoding import encode_path
from deeppart.state.document.parts import Own, PartDocument
from deeppart.state.tree.flat import Cuts, FlatState
from deeppart.state.tree.naming import Naming, pattern_of, some_names
from deeppart.state.tree.paths import ExactPath, readable
from deeppart.state.tree.per_rank import WAYS
from deeppart.state.tree.template import Template

_SUSPECT = ". Earlier steps are suspect: they hold one rank's bytes, or a mixture, for all"


#: What a rank is in the middle of, as it tells the others.
_CHECKPOINT, _RESTORE = 1, 2
_CALL = frozenset({"call", "step", "turn", "levels"})
_FLAGS = ("error", "fresh", "busy", "lacks", "rank0_arrays", "rank0_values")


class Saver:
    """The foreground of a save.

    Args:
        comm: channel of the training thread.
        config: the job's configuration.
        staging: memory for the share; reused by restores.
        record: puts on record, on rank 0, what has been found at a turn, and step, about earlier checkpoints.

    Attributes:
        diverged: leaves that the last :meth:`agree` found to have come to differ between ranks.
    """

    def __init__(
        self,
        comm: Comm,
        config: Config,
        staging: Staging,
        record: Callable[[int, int, Sequence[Divergence]], None],
    ) -> None:
        self._comm, self._record = comm, record
        self._timeout = config.timeout
        self._kappa = DEFAULT_KAPPA_BYTES if config.kappa is None else config.kappa
        self._classifier = Classifier(comm, config.replicated, config.timeout)
        self._template = Template()
        self._template.cuts = self._cuts(frozenset())
        self._noticed: tuple[str, ...] = ()
        self._told_patterns = False
        self._naming = Naming()
        #: How many arrays and values are rank 0's alone; this rank's own follow them in number.
        self._rank0 = (0, 0)
        self._staging = staging
        #: None before the first plan, and where it could not be made: it is made again at the next checkpoint then.
        self._share: ShareLayout | None = None
        self._unplanned = ""
        self._capture: CapturePlan | None = None
        self._lazy = LazyCapture(config.timeout) if config.capture == "lazy" else None
        self._owned: dict[int, torch.Tensor] = {}
        self._trailing: TrailingSlices | None = None
        self._flat: FlatState | None = None
        self._pinned = False
        self._fresh = False
        self._turn = 0
        self._error: DeeppartError | None = None
        self.diverged: tuple[Divergence, ...] = ()

    def look(self, state: object, refusal: DeeppartError | None) -> None:
        """Take the state apart (local). Errors are kept until the ranks have heard of them in :meth:`agree`.

        Args:
            refusal: the reason why this rank cannot take part, or None.
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
        except Exception as error:  # from the caller's objects: the other ranks are waiting to hear of it
            self._error = StateError("looking at the state failed", found=f"{type(error).__name__}: {error}")

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
        digests = self._digests(turn, saving=bool(due))
        levels = sum(1 << place for place, level in enumerate(LEVELS) if level in due)
        fields = {"call": _CHECKPOINT, "step": step, "turn": turn, "levels": levels, **digests}
        rank0 = self._count_rank0()
        flags = {"error": int(self._error is not None), "fresh": int(self._fresh or self._share is None), "busy": busy}
        flags["lacks"] = int(self._classifier.lacks)
        flags |= {"rank0_arrays": rank0[0], "rank0_values": rank0[1]}
        agreed = agree(self._comm, fields, flags, what, self._timeout)
        if agreed.differing & _CALL:
            self._raise_disagreement(what)
        if agreed.flags["error"]:
            raise_together(self._comm, self._error, what, self._timeout)
        assert self._flat is not None
        if agreed.flags["busy"]:
            return True
        self._rank0 = agreed.flags["rank0_arrays"], agreed.flags["rank0_values"]
        fresh = bool(agreed.flags["fresh"])
        if "structure" in agreed.differing or (fresh and self._has_own_cuts()):
            self._recut(what)
            fresh = True
        unread_alike = UNREAD not in agreed.differing
        if agreed.differing - {UNREAD} or fresh or agreed.flags["lacks"]:
            self._renew(turn, step, fresh, what, saved=bool(due))
        else:
            self._classifier.note(turn, step, saved=bool(due))
            self._trailing = self._classifier.alike(turn, self._flat, self._owned, unread_alike=unread_alike)
        return False

    def capture(self, step: int, turn: int) -> tuple[Staged, int, DeferredCopy | None]:
        """Copy this rank's share into staging memory (local).

        Returns:
            The staged share, how many of its bytes are this rank's own, and copies that are still to be made.

        Raises:
            MemoryError: staging memory cannot be reserved. CheckpointError: there is no plan.
        """
        layout, flat, share = self._classifier.layout, self._flat, self._share
        assert layout is not None and flat is not None
        if share is None:
            raise CheckpointError("this rank's share could not be planned", found=self._unplanned)
        staged = self._staging.reserve(share.nbytes, pinned=self._pinned)
        if self._capture is None or not self._capture.fits(staged):
            self._capture = CapturePlan(share, layout.types, flat.data, staged)
        later: dict[int, torch.Tensor] = {}
        if self._lazy is not None:
            later = self._lazy.later(flat, layout.types, self._owned)
        left = self._capture.copy(flat, later)
        deferred = None
        if self._lazy is not None and (later or self._trailing is not None):
            where = f"rank {self._comm.rank}, step {step}"
            deferred = self._lazy.defer(flat, later, left, turn, where, self._trailing)
            self._trailing = None
        own = sum(chunk.length for chunk in share.chunks if chunk.per_rank)
        return Staged(share, staging_bytes(staged), self._document(layout)), own, deferred

    def let_go(self) -> None:
        """Forget the state, so that nothing of it is kept alive between checkpoints."""
        if self._trailing is not None:  # no capture was begun
            self._trailing.drop()
        self._flat, self._trailing, self._owned = None, None, {}
        self._error = None  # its traceback leads to the state too
        self._template.clear()

    def restored(self) -> None:
        """The staging memory was used for something else, and the state was written to, memory by memory."""
        self._capture = None
        self._classifier.forget_digests()

    def close(self) -> None:
        """Nothing is saved any more."""
        self._classifier.close()

    def _digests(self, turn: int, *, saving: bool) -> dict[str, int]:
        if self._error is None and self._flat is not None:
            if self._lazy is not None and saving:
                self._owned = self._lazy.owned(self._flat)
            return self._classifier.digests(self._flat, turn, fresh=self._fresh, owned=self._owned)
        return dict.fromkeys(DIGESTS, 0)

    def _cuts(self, mine: frozenset[ExactPath]) -> Cuts | None:
        """The cuts of states: at ``mine``, where rank 0's holds for all, and where patterns treat items differently."""
        replication = self._classifier.replication
        if not mine and not replication.patterns:
            return None
        rank0 = replication.is_rank0 if replication.has_rank0 else None
        return Cuts(mine, rank0, self._comm.rank == 0, replication.splits if replication.patterns else None)

    def _has_own_cuts(self) -> bool:
        return self._template.cuts is not None and bool(self._template.cuts.mine)

    def _count_rank0(self) -> tuple[int, int]:
        """The number of arrays and values of this rank that are saved for all ranks."""
        if self._flat is None:
            return 0, 0
        shared, common = self._flat.shared, self._flat.common
        return common[0] - shared[0], common[1] - shared[1]

    def _recut(self, what: str) -> None:
        """The ranks' structures differ, or did: agree where to cut them, from scratch (collective).

        Raises:
            StructureMismatchError: on every rank; they differ where they may not.
        """
        assert self._flat is not None
        flat = self._template.cut(self._cuts(frozenset())) if self._has_own_cuts() else self._flat
        found = reconcile(self._comm, flat.root, self._classifier.replication, what, self._timeout)
        self._noticed = found.noticed
        self._flat = self._template.cut(self._cuts(found.cuts)) if found.cuts else flat
        self._classifier.prepare(self._flat)
        self._fresh = True
        layout = self._classifier.layout
        assert layout is not None
        digest = layout.structure_digest
        if "structure" in agree(self._comm, {"structure": digest}, {}, what, self._timeout).differing:
            raise StructureMismatchError(
                f"{what}: the state's structure differs between ranks in a way that cannot be named",
                expected="the same kinds of containers and of keys on every rank",
                where=f"rank {self._comm.rank}",
                todo="build the state in the same way on all ranks; overlapping patterns of `replicated` may hide it",
            )

    def _document(self, layout: Layout) -> PartDocument:
        flat = self._flat
        assert flat is not None
        per_rank, per_rank_values = layout.per_rank.copy(), layout.per_rank_values.copy()
        own = None
        if flat.apart:
            per_rank[flat.shared[0] : flat.common[0]] = False
            per_rank_values[flat.shared[1] : flat.common[1]] = False
            here = self._count_rank0()
            shift = self._rank0[0] - here[0], self._rank0[1] - here[1]
            rank0 = [encode_path(each.path) for each in flat.apart if not each.mine and each.node is not None]
            own = Own(encode_own(flat, shift), flat.common, shift, rank0, self._has_own_cuts())
        elif self._has_own_cuts() or any(self._rank0):
            own = Own([], flat.common, (0, 0), [], self._has_own_cuts())
        return PartDocument(
            tree=layout.tree,
            types=layout.types,
            aliases=dict(layout.aliases),
            per_rank=per_rank,
            per_rank_values=per_rank_values,
            own=own,
            values=self._classifier.values,
            with_structure=self._comm.rank == 0,
            compared=self._classifier.compared_earlier(self._turn) if self._comm.rank == 0 else (),
        )

    def _renew(self, turn: int, step: int, fresh: bool, what: str, *, saved: bool) -> None:
        """Something about the state is new: classify again, and plan again. A call that is refused is no turn."""
        assert self._flat is not None
        found = self._classifier.classify(self._flat, turn, step, fresh, what)
        self._classifier.note(turn, step, saved=saved)
        self.diverged = found.diverged
        if any(each.interval is not None for each in found.diverged):
            self._put_on_record(turn, step, what)
        self._tell_patterns(what)
        self._share = self._plan(what)
        if self._lazy is not None and self._share is not None and self._classifier.layout is not None:
            self._lazy.look_after(self._share, self._classifier.layout.types)
        self._pinned = any(data.is_cuda for data in self._flat.data if isinstance(data, torch.Tensor))
        self._capture = None
        self._fresh = False
        if self._comm.rank == 0:
            noticed, self._noticed = self._noticed, ()
            self._tell(found, noticed, what)  # last: where warnings are errors, the others are not left waiting

    def _put_on_record(self, turn: int, step: int, what: str) -> None:
        """That earlier checkpoints are suspect, before any rank is told of it and may end the job (collective)."""
        if self._comm.rank == 0:
            self._record(turn, step, self.diverged)
        finish(self._comm, self._comm.maximum(np.zeros(1, np.int64)), what, self._timeout)

    def _tell_patterns(self, what: str) -> None:
        """Say once which patterns match nothing on any rank (collective where there are patterns)."""
        replication = self._classifier.replication
        if self._told_patterns or not replication.patterns:
            return
        self._told_patterns = True
        used = np.array([pattern in replication.used for pattern in replication.patterns], dtype=np.int64)
        used = finish(self._comm, self._comm.maximum(used), what, self._timeout)
        unused = [pattern for pattern, hit in zip(replication.patterns, used.tolist(), strict=True) if not hit]
        if unused and self._comm.rank == 0:
            names = some_names([repr(each) for each in unused])
            warn_caller(f"replicated: {names} matches nothing: no path in the state of any rank", DeeppartWarning)

    def _tell(self, found: Classified, noticed: tuple[str, ...], what: str) -> None:
        """Warn of leaves that turn out to differ between ranks."""
        own = self._naming.news(noticed + found.per_rank)
        if own:
            names = some_names(own)
            warn_caller(f"these leaves differ between ranks and are saved per rank from now on: {names}", PerRankNotice)
        if found.diverged:
            warn_caller(
                f"{what}: leaves that all ranks held alike have come to differ. Where ranks are not meant to differ, "
                "this is a bug in training or silent data corruption; where they are, say so, "
                f"replicated={{{pattern_of(found.diverged[0].path)!r}: 'none', '*': 'auto'}}. Those that still differ "
                "are saved per rank from now on"
                f"{_SUSPECT * any(each.interval is not None for each in found.diverged)}:"
                f"\n  {some_names([str(each) for each in self.diverged], chr(10) + '  ')}",
                ReplicaDivergenceWarning,
            )

    def _plan(self, what: str) -> ShareLayout | None:
        """This rank's share. Every rank computes the same plan; only the sizes of per-rank leaves are exchanged.

        Returns:
            None where the plan cannot be made on this rank. The others go on, and hear of it in the commit rounds.
        """
        layout, flat = self._classifier.layout, self._flat
        assert layout is not None and flat is not None
        sized = [i for i, kind in enumerate(layout.types) if kind.nbytes and i not in layout.aliases]
        carries = [i for i in sized if layout.per_rank[i]]
        rank0 = [i for i in carries if flat.shared[0] <= i < flat.common[0]]
        own = [i for i in carries if i not in set(rank0)] if rank0 else carries
        shared = [i for i in sized if not layout.per_rank[i]]
        carried = np.zeros(self._comm.size, dtype=np.int64)
        carried[self._comm.rank] = sum(layout.types[i].nbytes for i in carries) + int(self._kappa) * len(carries)
        if layout.per_rank[: flat.shared[0]].any() or self._has_own_cuts() or any(self._rank0):
            carried = finish(self._comm, self._comm.maximum(carried), what, self._timeout)
        try:
            paths = [readable(leaf.path) for leaf in flat.arrays]
            specs = leaf_specs(layout.types, paths, shared)
            plan = partition(specs, self._comm.size, kappa=self._kappa, preload=carried.astype(np.float64))
            spans = [(shared[span.leaf], span.start, span.length) for span in plan.share(self._comm.rank).spans]
            spans += [(leaf, 0, layout.types[leaf].nbytes) for leaf in rank0]
            return lay_out(layout.types, spans, own, trained_leaves(flat))
        except Exception as error:
            self._unplanned = f"{type(error).__name__}: {error}"
            return None

    def agree_on_restore(self, step: int | None, per_rank: str) -> None:
        """See that every rank is in the same call of ``restore`` (collective).

        By the same reduction as :meth:`agree`, so that ranks which are in different calls find that out.

        Args:
            per_rank: one of :data:`deeppart.state.tree.per_rank.WAYS`.

        Raises:
            RanksDisagreeError: ranks make different calls.
            PeerTimeoutError: a rank did not make the call.
        """
        ways = WAYS.index(per_rank) * 2 + (step is None)
        fields = {"call": _RESTORE, "step": step or 0, "turn": 0, "levels": ways, **dict.fromkeys(DIGESTS, 0)}
        # Other ranks may still be waiting for their background, and be as late for that.
        agreed = agree(self._comm, fields, dict.fromkeys(_FLAGS, 0), "restore", 2 * self._timeout)
        if agreed.differing & _CALL:
            self._raise_disagreement(f"restore(step={step}, per_rank={per_rank})")

    def _raise_disagreement(self, what: str) -> None:
        texts = finish(self._comm, self._comm.allgather(what.encode()), what, self._timeout)
        calls = [text.decode(errors="replace") for text in texts]
        found = ", ".join(f"rank {rank}: {theirs}" for rank, theirs in enumerate(calls[:8]))
        raise RanksDisagreeError(
            f"{what}: ranks made different calls",
            expected="the same call with the same step on every rank, and every rank making every call",
            found=f"{found}{' ...' if len(calls) > 8 else ''}"
            + (
                "; the same step, but not the same number of calls, or not all with `force`"
                if len(set(calls)) == 1
                else ""
            ),
            where=f"rank {self._comm.rank}",
            todo="checkpoint() and restore() are collective: call them on all ranks, with the same arguments",
        )
