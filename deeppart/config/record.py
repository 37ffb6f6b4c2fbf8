"""Configuration: one frozen record, checked when it is made.

Precedence is argument > ``DEEPPART_*`` environment variable > ``deeppart.toml`` in the working directory > default:
``Config(keep={"local": 2})`` takes every setting that is not an argument from the next source that has it. Nothing
outside this package reads the environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from deeppart import access
from deeppart.config import checks, sources
from deeppart.model import REDUNDANT_LEVELS, Level, show_bytes, show_rate, show_seconds

#: Returns the value of a setting in its canonical form, or raises an error that says what was expected.
Check = Callable[[str, Any], Any]


def _setting(
    default: Any,
    check: Check,
    read: Callable[[str], Any] = str,
    *,
    show: Callable[[Any], str] | None = None,
    is_shared: bool = True,
) -> Any:
    """The field of a setting: how it is checked, read from an environment variable and shown with its unit, and whether
    ranks must agree on it.
    """
    kind = {"check": check, "read": read, "show": show or _show, "is_shared": is_shared}
    return field(default_factory=dict, metadata=kind) if default == {} else field(default=default, metadata=kind)


def _bandwidth() -> Any:
    """The field of a most number of bytes per second and node."""
    check = partial(checks.check_positive, optional=True)
    return _setting(None, check, sources.read_size, show=lambda rate: f"{show_rate(rate)} per node", is_shared=False)


def _count(what: str, show: str, *, is_shared: bool = True) -> Any:
    """The field of a number of things."""
    check = partial(checks.check_count, what=what, optional=True)
    return _setting(None, check, int, show=show.format, is_shared=is_shared)


def _choice(default: str, *others: str) -> Any:
    """The field of a setting with a few possible values."""
    return _setting(default, partial(checks.check_choice, choices=(default, *others)))


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)


def _show_every(every: Mapping[str, int] | str) -> str:
    return _show(every) + " (in checkpoints)" * isinstance(every, Mapping)


def _show_keep(keep: Mapping[str, int]) -> str:
    return ", ".join(f"{level} {count or 'all'}" for level, count in keep.items()) + " (in steps)"


class _Origin:
    """Data of a configuration besides its settings. A copy of it counts as passed in code."""

    __slots__ = ("_from_file",)

    @property
    def from_file(self) -> Mapping[str, str]:
        """Setting -> the ``deeppart.toml`` that it was taken from."""
        return getattr(self, "_from_file", {})


@dataclass(frozen=True, slots=True)
class Config(_Origin):
    """The settings of a :class:`deeppart.Checkpointer`.

    Attributes:
        persistent_dir: directory on the parallel file system, the same for every rank.
        local_dir: node-local directory for the fast first copy; None writes straight to ``persistent_dir``.
            Both may hold ``{node}``, ``{rank}``, ``{job}`` and ``$VARIABLES``.
        every: level -> a checkpoint goes to the level every that many ``checkpoint()`` calls; 0 switches it off.
            ``partner``, if left out, is as often as ``local`` where there are two nodes or more. "auto": call
            ``checkpoint()`` at every training step; it saves when that is worth its costs (``Checkpointer.cadence``).
        keep: level -> how many committed steps stay there; 0 keeps all. One of ``deeppart.toml`` removes no steps of
            earlier runs from ``persistent_dir``.
        compression: "none"; "tensor", the codec made for tensors; "zstd" or "zstd:LEVEL"; "auto", "tensor" for those
            dtypes and at those levels where it makes a checkpoint complete sooner.
        capture: "eager": the state is copied before ``checkpoint()`` returns. "lazy": what only an optimizer changes is
            copied in the background meanwhile, and ``optimizer.step()`` is held back until that is done.
        incremental: true if chunks that have not changed since the last checkpoint of a level are referred to there,
            instead of being written again.
        replicated: "auto" compares leaves across ranks, "verify" all of them in full every time, "rotate" large ones
            slice by slice, "all" trusts that all are equal, "none" saves all per rank, "parts" is as "auto", but dicts
            may have other keys on other ranks, as pipeline stages have. Or a mapping from globs over paths, as
            ``load(keys=...)`` takes them, to one of these or to "rank0", which saves what rank 0 has for all; the first
            that matches decides.
        exclude: globs over paths: items of dicts that are in no checkpoint, and that stay as they are when one is
            restored: the frozen weights below an adapter.
        on_busy: what ``checkpoint()`` does while the pipeline is full: "wait" for it or "skip" this checkpoint.
        flush_bandwidth: most bytes per second that one node sends to ``persistent_dir`` and to other nodes; None for no
            limit.
        timeout: seconds that any wait for other ranks may take before it ends in an error naming them.
        permissions: who else may read and write checkpoints, and whose directories are used. "private": on nodes nobody
            else; ``persistent_dir`` as the umask says. "umask": nodes too. "group": the directories' group may do what
            their owner may. "unchecked": as "umask", and nobody asks whose a directory is.
        sign_key_file: file with a key, 32 random bytes or more, that checkpoints are signed with, and that what is
            restored must be signed with; of the user's own and readable by nobody else. Or several: the first signs,
            all verify. None for no signatures. It may hold ``{node}``, ``{rank}``, ``{job}`` and ``$VARIABLES``.
        metrics_file: file that gets the figures of this rank in the text format of Prometheus; None for none. With
            ``{rank}`` in it, every rank writes one, otherwise the first rank of each node. A file that holds something
            else is refused.
        events_file: likewise, file that gets a line of JSON for each event: checkpoints, restores, start and end.
        parity_tolerate: nodes of each parity group that may be lost; None for 1.
        protection: what happens if the job has too few nodes for the partner and parity levels asked for: "best"
            goes on with the best that these nodes can give, and says so; "strict" refuses to start.
        parity_group: nodes in a parity group, at least; None for 8, or all where there are fewer.
        scrub_bandwidth: bytes per second and node at which what lies on nodes is read again and checked in the
            background; None for never.
        node_size: treat that many consecutive ranks as one node; None: ranks are on one node if its name
            is the same, as Slurm or the host says it.
        encode_threads: chunks that a rank encodes at a time; None for its share of the processors of its node less
            one, at most 4.
        kappa: cost of one more tensor in a share, in bytes that could be copied meanwhile, which ``deeppart-sim
            calibrate`` measures; None for the default.
        status: who writes a small status file below ``persistent_dir``, for ``deeppart watch``: the first rank of each
            "node", every "rank", or "none".

    Raises:
        ConfigError: a setting that does not exist, an impossible value, or one that needs a feature this version does
            not have.

    Example:
        >>> import deeppart
        >>> config = deeppart.Config(persistent_dir="ckpt", every={"persistent": 4}, flush_bandwidth=500e6)
        >>> print(config)
        persistent_dir: ckpt
        every: persistent 4 (in checkpoints)
        keep: persistent 3 (in steps)
        flush_bandwidth: 500 MB/s per node
        all others as by default
    """

    persistent_dir: str = _setting("ckpt", checks.check_directory)
    local_dir: str | None = _setting(None, checks.check_optional, is_shared=False)
    every: Mapping[str, int] | str = _setting({}, checks.check_every, sources.read_every, show=_show_every)
    keep: Mapping[str, int] = _setting({}, checks.check_keep, sources.read_counts, show=_show_keep)
    compression: str = _setting("auto", checks.check_compression)
    capture: str = _choice("eager", "lazy")
    incremental: bool = _setting(True, checks.check_switch, sources.read_switch)
    replicated: str | Mapping[str, str] = _setting("auto", checks.check_replicated, sources.read_modes)
    exclude: str | Sequence[str] = _setting((), checks.check_globs, sources.read_globs)
    on_busy: str = _choice("wait", "skip")
    flush_bandwidth: float | None = _bandwidth()
    timeout: float = _setting(600.0, checks.check_positive, float, show=show_seconds)
    permissions: str = _choice(*access.PERMISSIONS)
    sign_key_file: str | Sequence[str] | None = _setting(
        None, checks.check_key_files, sources.read_paths, is_shared=False
    )
    metrics_file: str | None = _setting(None, checks.check_optional, is_shared=False)
    events_file: str | None = _setting(None, checks.check_optional, is_shared=False)
    parity_tolerate: int | None = _count("nodes", "{} of a group's nodes may be lost")
    protection: str = _choice("best", "strict")
    # Seldom needed.
    parity_group: int | None = _count("nodes", "{} nodes")
    scrub_bandwidth: float | None = _bandwidth()
    node_size: int | None = _count("ranks", "{} ranks")
    encode_threads: int | None = _count("threads", "{}", is_shared=False)
    kappa: float | None = _setting(
        None, partial(checks.check_positive, optional=True, zero=True), sources.read_size, show=show_bytes
    )
    status: str = _choice("node", "rank", "none")

    if not TYPE_CHECKING:  # the arguments are those that dataclass() would make

        def __init__(self, **settings: Any) -> None:
            readers = _each("read")
            for name in settings.keys() - readers.keys():
                raise sources.no_such_setting(name, readers)
            found, from_file = sources.configured(readers)
            values = _defaults() | found | settings
            for name, check in _each("check").items():
                object.__setattr__(self, name, check(name, checks.plain(values[name])))
            object.__setattr__(self, "_from_file", {name: at for name, at in from_file.items() if name not in settings})
            self._check_together()

    def _check_together(self) -> None:
        """Check the settings that depend on others, and complete them."""
        object.__setattr__(self, "every", checks.complete_every(self.every, self.local_dir))
        if self.events_file is not None and self.events_file == self.metrics_file:
            raise checks.refusal("events_file", self.events_file, "another file than metrics_file")
        checks.check_parity(self.parity_group, self.parity_tolerate)

    def __str__(self) -> str:
        """Directory, cadence, retention and what differs from the defaults, a line for each, with units; no levels
        that are off.
        """
        off, defaults, lines = self._levels_off(), _defaults(), []
        for name, show in _each("show").items():
            value = getattr(self, name)
            if name in _ALWAYS or value != defaults[name]:
                if name in ("every", "keep") and isinstance(value, Mapping):
                    value = {level: count for level, count in value.items() if level not in off}
                lines.append(f"{name}: {show(value)}")
        return "\n".join([*lines, *(["all others as by default"] if len(lines) < len(defaults) else [])])

    def _levels_off(self) -> set[str]:
        off = {level for level, count in self.every.items() if not count} if isinstance(self.every, Mapping) else set()
        if Level.LOCAL in off or self.local_dir is None:
            off |= {Level.LOCAL, *REDUNDANT_LEVELS}  # they copy and encode the local level's parts
        return off

    def shared_settings(self) -> dict[str, str]:
        """The settings that must be equal on every rank, as text (``persistent_dir`` may differ through its
        placeholders).
        """
        local = self.local_dir is not None and (isinstance(self.every, str) or self.every[Level.LOCAL] > 0)
        # First, since all or none of the ranks take part; ``every`` follows from it.
        given = {"local_dir": local, "scrub_bandwidth": self.scrub_bandwidth is not None}
        texts = {name: "one of its own" if is_given else "None" for name, is_given in given.items()}
        texts |= {name: comparable(getattr(self, name)) for name in _defaults() if name not in OF_EACH_RANK}
        return texts | {"persistent_dir": comparable(str(PurePath(self.persistent_dir)))}


def _each(key: str) -> dict[str, Any]:
    """What is known of each setting."""
    return {each.name: each.metadata[key] for each in fields(Config)}


def _defaults() -> dict[str, Any]:
    return {each.name: {} if each.default is MISSING else each.default for each in fields(Config)}


#: Settings in which ranks may differ. Of ``sign_key_file`` the keys are compared, of ``local_dir`` and
#: ``scrub_bandwidth`` whether there is one.
OF_EACH_RANK = frozenset(name for name, is_shared in _each("is_shared").items() if not is_shared)
#: Shown even if they have their defaults.
_ALWAYS = ("persistent_dir", "every", "keep")


def comparable(value: object) -> str:
    """One text for equal values of any types: 15 and 15.0, a string and an equal enum member."""
    if isinstance(value, str):
        return repr(str.__str__(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{comparable(key)}: {comparable(each)}' for key, each in value.items())}}}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(int(value) if math.isfinite(value) and value == int(value) else float(value))
    return repr(value)
