"""Warnings of rank 0 about leaves that differ between ranks, and the records of suspect steps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from deeppart._threads import start_thread
from deeppart.comm import Comm, finish
from deeppart.errors import (
    BackgroundFailureWarning,
    DeeppartWarning,
    PerRankNotice,
    ReplicaDivergenceWarning,
    warn_caller,
)
from deeppart.model import Attempt, SuspectLeaf, Suspicion, show_bytes, show_seconds
from deeppart.save.retention import CallNotes
from deeppart.state.compare import Differences, Divergence
from deeppart.state.objects import is_generator
from deeppart.state.paths import Naming, Path, readable, some_names
from deeppart.state.tree import Branch, Node
from deeppart.storage import Store, Suspicions

#: The names of an optimizer's parameters, which differ between pipeline stages.
_PARAMETER_NAMES = re.compile(r"(^|/)param_groups/[0-9]+/params(/|$)")
#: Bytes compared in full at a checkpoint that are no reason for a warning.
HASHED_BYTES = 100_000_000
#: Paths in a setting that is shown, at most.
_MOST_RULES = 4
_SUSPECT = ". Earlier steps are suspect: they have one rank's bytes, or a mixture, for all"
_OWN = (
    "\n  If ranks are meant to differ there, nothing is to be done: on as many ranks each gets its own back, and on "
    "another number restore() asks for per_rank=. To say so beforehand: {}. If not, make them alike, or say in "
    "`replicated` whose holds"
)
#: The items of ``rng_state()``, without those of GPUs.
_RNG_STATE = {"python", "numpy", "torch"}


def generators(node: Node) -> Iterator[Path]:
    """The paths of random generators: objects of their types, and results of ``rng_state()``; not by name."""
    if not isinstance(node, Branch):
        return
    items = node.container if isinstance(node.container, dict) else {}
    if is_generator(node.container) or (items.keys() - {"cuda"} == _RNG_STATE and _is_numpys(items["numpy"])):
        yield node.path
        return
    for child in node.children:
        yield from generators(child)


def _is_numpys(state: Any) -> bool:
    return isinstance(state, dict) and "bit_generator" in state


class Warnings:
    """Warns the user, of each thing once. Used by the training thread alone."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._naming = Naming()
        self._reported_patterns: set[str] = set()
        #: The warning of :meth:`hashed` was given, or is not wanted.
        self.is_hashing_known = quiet

    def patterns(
        self, comm: Comm, setting: str, patterns: Sequence[str], matched: Collection[str], what: str, timeout: float
    ) -> None:
        """Warn once of a setting's patterns that match nothing on any rank (collective if there are patterns)."""
        if setting in self._reported_patterns or self._quiet or not patterns:
            return
        self._reported_patterns.add(setting)
        used = np.array([pattern in matched for pattern in patterns], dtype=np.int64)
        used = finish(comm, comm.maximum(used), what, timeout)
        unused = [pattern for pattern, hit in zip(patterns, used.tolist(), strict=True) if not hit]
        if unused and comm.rank == 0:
            names = some_names([repr(each) for each in unused])
            warn_caller(f"{setting}: {names} matches nothing: no path in the state of any rank", DeeppartWarning)

    def mark_known(self, names: Sequence[str]) -> None:
        """The user was warned of these per-rank leaves in an earlier run."""
        self._naming.news(names)

    def hashed(self, paths: Sequence[Path], nbytes: int, seconds: float) -> None:
        """Warn once of large leaves that each rank has to read in full at every checkpoint."""
        if nbytes <= HASHED_BYTES or self.is_hashing_known:
            return
        self.is_hashing_known = True
        names = some_names(list(map(readable, paths)), most=_MOST_RULES)
        warn_caller(
            f"at each checkpoint every rank reads {show_bytes(nbytes)} in full to compare them with the others, "
            f"because no torch optimizer is known to train them: {names} ({show_seconds(seconds)} this time). Where "
            "ranks compute them alike, as averages of weights, replicated={glob: 'rotate'} compares a part of them "
            "each time; what is not written to is compared so anyway",
            DeeppartWarning,
        )

    def differences(self, found: Differences, noticed: Sequence[str], root: Node, what: str) -> None:
        """Warn of leaves that differ between ranks, except random generators, which are expected to."""
        if self._quiet:
            return
        own = [name for name in (*noticed, *found.per_rank) if not _PARAMETER_NAMES.search(name)]
        known = list(map(readable, generators(root))) if own else []
        inside = tuple(f"{name}/" for name in known)
        paths = [name for name in own if name not in known and not name.startswith(inside)]
        if news := self._naming.news(paths):
            text = f"these leaves differ between ranks and are saved per rank from now on: {some_names(news)}"
            warn_caller(text + _OWN.format(_setting(paths)), PerRankNotice)
        if found.diverged:
            warn_caller(
                f"{what}: leaves that all ranks held alike have come to differ. Where ranks are not meant to differ, "
                "this is a bug in training or silent data corruption; where they are, say so, "
                f"{_setting([each.path for each in found.diverged])}. Those that still differ are saved per rank from "
                "now on"
                f"{_SUSPECT * any(each.interval is not None for each in found.diverged)}:"
                f"\n  {some_names([str(each) for each in found.diverged], chr(10) + '  ')}",
                ReplicaDivergenceWarning,
            )


def _setting(paths: Sequence[str]) -> str:
    """The setting that allows ranks to differ at these paths, or at the first of them."""
    rules = ", ".join(f"{path!r}: 'none'" for path in paths[:_MOST_RULES])
    return f"replicated={{{rules}{', ...' * (len(paths) > _MOST_RULES)}}}"


#: Steps named in a warning; the record has all.
_MOST_NAMED = 8


def suspicion_of(attempt: Attempt, diverged: Sequence[Divergence]) -> Suspicion | None:
    """The record of a checkpoint's findings; None if no earlier checkpoint is suspect because of them."""
    leaves, steps = [], dict[int, None]()
    for each in diverged:
        if each.interval is not None:
            leaves.append(SuspectLeaf(each.path, each.ranks, each.interval.after, each.interval.after_step))
            steps |= dict.fromkeys(each.interval.steps)
    if not leaves:
        return None
    return Suspicion(attempt.lineage, attempt.session, attempt.sequence, attempt.step, tuple(steps), tuple(leaves))


class SuspicionWriter:
    """Writes records of suspect steps immediately: the checkpoint may never be complete, and the caller may end the
    job because of the warning.
    """

    def __init__(self, store: Store, job: Attempt, timeout: float, call_notes: CallNotes) -> None:
        self._store, self._job, self._timeout, self._call_notes = store, job, timeout, call_notes
        self._threads: list[threading.Thread] = []  # touched by the training thread alone

    def record(self, sequence: int, step: int, diverged: Sequence[Divergence]) -> None:
        """Record the findings of a checkpoint of this session."""
        suspicion = suspicion_of(replace(self._job, sequence=sequence, step=step), diverged)
        if suspicion is None:
            return
        write, failed = partial(Suspicions.write, self._store, suspicion), partial(self._note_failure, suspicion)
        thread = start_thread(write, "deeppart-suspect", failed)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.join(self._timeout)

    def wait(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until all records are written or have failed."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _note_failure(self, suspicion: Suspicion, error: BaseException) -> None:
        steps = ", ".join(map(str, suspicion.steps[:_MOST_NAMED]))
        text = f"the record that these steps are suspect could not be written: {steps}: {error}"
        self._call_notes.note(text, BackgroundFailureWarning)
