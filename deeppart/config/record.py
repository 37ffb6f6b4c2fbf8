"""Configuration: one frozen record, checked when it is made.

Precedence is argument > ``DEEPPART_*`` environment variable > ``deeppart.toml`` in the working directory > default:
``Config(keep={"local": 2})`` takes every setting that is not an argument from the next source that has it. Nothing
outside this package reads the environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import PurePath
from typing import Any, TypedDict, Unpack

from deeppart import access
from deeppart.config.checks import (
    check_choice,
    check_compression,
    check_count,
    check_directory,
    check_every,
    check_file,
    check_globs,
    check_key_files,
    check_levels,
    check_parity,
    check_positive,
    check_replicated,
    plain,
    refusal,
)
from deeppart.config.sources import configured, kappa_of, no_such_setting
from deeppart.model import DEFAULT_KEEP, REDUNDANT_LEVELS, Level, show_bytes, show_rate, show_seconds

#: Settings in which ranks may differ. Of ``machine`` its ``kappa`` is compared, of ``sign_key_file`` the keys, of
#: ``local_dir`` and ``scrub_bandwidth`` whether there is one.
OF_EACH_RANK = frozenset(
    {
        "local_dir",
        "flush_bandwidth",
        "encode_threads",
        "machine",
        "scrub_bandwidth",
        "sign_key_file",
        "metrics_file",
        "events_file",
    }
)


class Settings(TypedDict, total=False):
    """The arguments of :class:`Config`, and of a :class:`deeppart.Checkpointer` without one."""

    persistent_dir: str
    local_dir: str | None
    every: Mapping[str, int] | str
    keep: Mapping[str, int]
    compression: str
    capture: str
    incremental: bool
    replicated: str | Mapping[str, str]
    exclude: str | Sequence[str]
    on_busy: str
    flush_bandwidth: float | None
    timeout: float
    permissions: str
    sign_key_file: str | Sequence[str] | None
    metrics_file: str | None
    events_file: str | None
    parity_tolerate: int | None
    protection: str
    parity_group: int | None
    scrub_bandwidth: float | None
    node_size: int | None
    encode_threads: int | None
    machine: str | None
    kappa: float | None
    status: str


class _Origin:
    """Data of a configuration besides its settings. A copy of it counts as passed in code."""

    __slots__ = ("_from_file",)

    @property
    def from_file(self) -> Mapping[str, str]:
        """Setting -> the ``deeppart.toml`` that it was taken from."""
        return getattr(self, "_from_file", {})


@dataclass(frozen=True, slots=True, init=False)
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
        machine: a file that ``deeppart-sim calibrate`` has written here; what it measured of tensors is used.
        kappa: cost of one more tensor in a share, in bytes that could be copied meanwhile; None for that of
            ``machine``, or the default.
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

    persistent_dir: str = "ckpt"
    local_dir: str | None = None
    every: Mapping[str, int] | str = field(default_factory=dict)
    keep: Mapping[str, int] = field(default_factory=dict)
    compression: str = "auto"
    capture: str = "eager"
    incremental: bool = True
    replicated: str | Mapping[str, str] = "auto"
    exclude: str | Sequence[str] = ()
    on_busy: str = "wait"
    flush_bandwidth: float | None = None
    timeout: float = 600.0
    permissions: str = "private"
    sign_key_file: str | Sequence[str] | None = None
    metrics_file: str | None = None
    events_file: str | None = None
    parity_tolerate: int | None = None
    protection: str = "best"
    # Seldom needed.
    parity_group: int | None = None
    scrub_bandwidth: float | None = None
    node_size: int | None = None
    encode_threads: int | None = None
    machine: str | None = None
    kappa: float | None = None
    status: str = "node"

    def __init__(self, **settings: Unpack[Settings]) -> None:
        defaults = _defaults()
        for name in settings.keys() - defaults.keys():
            raise no_such_setting(name, defaults)
        found, from_file = configured(defaults)
        for name, value in (defaults | found | dict(settings)).items():
            object.__setattr__(self, name, plain(value))
        object.__setattr__(self, "_from_file", {name: file for name, file in from_file.items() if name not in settings})
        self._check()

    def _check(self) -> None:
        """Convert the settings to their canonical form, and refuse impossible ones."""
        for name in ("persistent_dir", "local_dir"):
            object.__setattr__(self, name, check_directory(name, getattr(self, name)))
        object.__setattr__(self, "every", check_every(self.every, self.local_dir))
        object.__setattr__(self, "keep", {**DEFAULT_KEEP, **check_levels("keep", self.keep)})
        check_choice("capture", self.capture, ("eager", "lazy"))
        object.__setattr__(self, "replicated", check_replicated(self.replicated))
        object.__setattr__(self, "exclude", check_globs("exclude", self.exclude))
        check_choice("on_busy", self.on_busy, ("wait", "skip"))
        check_choice("status", self.status, ("node", "rank", "none"))
        for name in ("metrics_file", "events_file"):
            object.__setattr__(self, name, check_file(name, getattr(self, name)))
        if self.events_file is not None and self.events_file == self.metrics_file:
            raise refusal("events_file", self.events_file, "another file than metrics_file")
        check_choice("permissions", self.permissions, access.PERMISSIONS)
        check_choice("protection", self.protection, ("best", "strict"))
        check_compression(self.compression)
        if not isinstance(self.incremental, bool):
            raise refusal("incremental", self.incremental, "true or false")
        check_positive("flush_bandwidth", self.flush_bandwidth, optional=True)
        check_positive("timeout", self.timeout)
        if self.machine is not None and self.kappa is None:
            object.__setattr__(self, "kappa", kappa_of(self.machine))
        check_positive("kappa", self.kappa, optional=True, zero=True)
        check_count("node_size", self.node_size, "ranks", optional=True)
        check_count("encode_threads", self.encode_threads, "threads", optional=True)
        check_positive("scrub_bandwidth", self.scrub_bandwidth, optional=True)
        check_parity(self.parity_group, self.parity_tolerate)
        object.__setattr__(self, "sign_key_file", check_key_files(self.sign_key_file))

    def __str__(self) -> str:
        """The settings that differ from the defaults, a line for each, with units."""
        defaults = _defaults()
        return show_settings({name: getattr(self, name) for name in defaults}, defaults)

    def shared_settings(self) -> dict[str, str]:
        """The settings that must be equal on every rank, as text (``persistent_dir`` may differ through its
        placeholders).
        """
        local = self.local_dir is not None and (isinstance(self.every, str) or self.every[Level.LOCAL] > 0)
        # First, since all or none of the ranks take part; ``every`` follows from it.
        given = {"local_dir": local, "scrub_bandwidth": self.scrub_bandwidth is not None}
        shared = [name for name in _defaults() if name not in OF_EACH_RANK]
        texts = {name: "one of its own" if is_given else "None" for name, is_given in given.items()}
        texts |= {name: comparable(getattr(self, name)) for name in shared}
        return texts | {"persistent_dir": comparable(str(PurePath(self.persistent_dir)))}


def _defaults() -> dict[str, Any]:
    """The settings, and their defaults."""
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(Config)
    }


_WITH_UNITS: Mapping[str, Callable[[Any], str]] = {
    "flush_bandwidth": lambda value: f"{show_rate(value)} per node",
    "scrub_bandwidth": lambda value: f"{show_rate(value)} per node",
    "timeout": show_seconds,
    "kappa": show_bytes,
    "node_size": lambda value: f"{value} ranks",
    "parity_group": lambda value: f"{value} nodes",
    "parity_tolerate": lambda value: f"{value} of a group's nodes may be lost",
}
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


def show_settings(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Directory, cadence and retention, then all settings that differ from defaults; without levels that are off."""
    off = _levels_off(settings)
    lines = []
    for name, value in settings.items():
        if name not in _ALWAYS and value == defaults[name]:
            continue
        if name in ("every", "keep") and isinstance(value, Mapping):
            value = {level: count for level, count in value.items() if level not in off}
        lines.append(f"{name}: {_show(name, value)}")
    left_out = len(lines) < len(settings)
    return "\n".join([*lines, *(["all others as by default"] if left_out else [])])


def _levels_off(settings: Mapping[str, Any]) -> set[str]:
    every = settings["every"]
    off = {level for level, count in every.items() if not count} if isinstance(every, Mapping) else set()
    if Level.LOCAL in off or settings["local_dir"] is None:
        off |= {Level.LOCAL, *REDUNDANT_LEVELS}  # they copy and encode the local level's parts
    return off


def _show(name: str, value: Any) -> str:
    if value is not None and name in _WITH_UNITS:
        return _WITH_UNITS[name](value)
    if name == "keep" and isinstance(value, Mapping):
        return ", ".join(f"{level} {count or 'all'}" for level, count in value.items()) + " (in steps)"
    if isinstance(value, Mapping):
        unit = " (in checkpoints)" if name == "every" else ""
        return ", ".join(f"{key} {item}" for key, item in value.items()) + unit
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)
