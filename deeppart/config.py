"""Configuration: one frozen record, checked when it is made.

Precedence is argument > ``DEEPPART_*`` environment variable > ``deeppart.toml`` in the working directory > default:
``Config(keep={"local": 2})`` takes every setting that is not an argument from the next source that has it. This is
the only module that reads the environment.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from deeppart import access
from deeppart.errors import ConfigError
from deeppart.misspelt import no_such_setting, settings_by_name
from deeppart.model import DEFAULT_KEEP, LEVELS, REDUNDANT_LEVELS
from deeppart.units import read_bytes, read_rate, read_seconds

T = TypeVar("T")

ENVIRONMENT_PREFIX = "DEEPPART_"
CONFIG_FILE = "deeppart.toml"

#: "partner" is not here: it depends on the number of nodes, which a configuration does not know.
DEFAULT_EVERY: Mapping[str, int] = {"local": 1, "parity": 0, "persistent": 1}
#: The value of ``every`` with which the library decides.
AUTO = "auto"
DEFAULT_PARITY_TOLERATE = 1
#: Without `parity_group`, groups have this many nodes, or all of them where there are fewer.
DEFAULT_PARITY_GROUP = 8
MOST_PARITY_GROUP = 127

#: Nobody writes so much by hand; a machine file has two kilobytes.
_MOST_TOML_BYTES = 1 << 20
#: Steps, ranks, threads: what is counted fits into 32 bits.
_MOST_COUNT = 2**31 - 1

#: Ways to treat leaves of which ranks may hold the same.
REPLICATED = ("auto", "all", "none", "verify")
_PLACEHOLDERS = ("node", "rank", "job")
_COMPRESSION = re.compile(r"auto|none|tensor|zstd(:-?\d{1,3})?")
_LEAST_ZSTD, _MOST_ZSTD = -7, 22


def _setting(name: str, default: Any) -> Any:
    """A dataclass field that asks the environment and the file when the argument is left out."""
    return field(default_factory=lambda: _reading.found.get(name, default))


class _Reading(threading.local):
    """What the environment and the file say while a configuration is made: read once, they cannot change in between."""

    found: Mapping[str, Any] = MappingProxyType({})


_reading = _Reading()


def _read_once(kind: type[T]) -> type[T]:
    create = kind.__init__

    @functools.wraps(create)
    def __init__(self: T, *args: Any, **settings: Any) -> None:
        _reading.found = _configured()
        try:
            create(self, *args, **settings)
        finally:
            _reading.found = {}

    kind.__init__ = __init__  # type: ignore[assignment, method-assign]
    return kind


@settings_by_name
@_read_once
@dataclass(frozen=True, slots=True)
class Config:
    """What a :class:`deeppart.Checkpointer` does, and where.

    Attributes:
        persistent_dir: directory on the parallel file system, the same for every rank.
        local_dir: node-local directory for the fast first copy; None writes straight to ``persistent_dir``.
            Both may hold ``{node}``, ``{rank}``, ``{job}`` and ``$VARIABLES``.
        every: level -> a checkpoint goes to the level every that many ``checkpoint()`` calls; 0 switches it off.
            ``partner``, if left out, is as often as ``local`` where there are two nodes or more. "auto": call
            ``checkpoint()`` at every training step; it saves when that is worth its costs (:mod:`deeppart.cadence`).
        keep: level -> how many committed steps stay there; 0 keeps all.
        compression: "none"; "tensor", the codec made for tensors; "zstd" or "zstd:LEVEL"; "auto", "tensor" for those
            dtypes and at those levels where it makes a checkpoint complete sooner.
        encode_threads: chunks that a rank encodes at a time; None for its share of the processors of its node less
            one, at most 4.
        incremental: whether chunks that have not changed since the last checkpoint of a level are referred to there,
            instead of being written again.
        capture: "eager": the state is copied before ``checkpoint()`` returns. "lazy": what only an optimizer changes is
            copied in the background meanwhile, and ``optimizer.step()`` is held back until that is done.
        replicated: "auto" compares leaves across ranks, "verify" all of them in full every time, "all" trusts that all
            are equal, "none" saves all per rank. Or a mapping from globs over paths, as ``load(keys=...)`` takes them,
            to one of these or to "rank0", which saves what rank 0 has for all; the first that matches decides.
        on_busy: what ``checkpoint()`` does while the pipeline has no room: "wait" for it or "skip" this checkpoint.
        flush_bandwidth: most bytes per second that one node sends to ``persistent_dir`` and to other nodes; None for no
            limit.
        node_size: treat that many consecutive ranks as one node; None asks MPI which ranks share a host.
        timeout: seconds that any wait for other ranks may take before it ends in an error naming them.
        kappa: cost of one more tensor in a share, in bytes that could be written meanwhile; None for that of
            ``machine``, or the default.
        machine: a file that ``deeppart-sim calibrate`` has written here; what it measured of tensors is used.
        parity_group: nodes in a parity group, at least; None for 8, or all where there are fewer.
        parity_tolerate: nodes of each group that may be lost; None for 1.
        protection: what happens where the job has too few nodes for the partner and parity levels asked for: "best"
            goes on with the best that these nodes can give, and says so; "strict" refuses to start.
        scrub_bandwidth: bytes per second and node at which what lies on nodes is read again and checked in the
            background; None for never.
        permissions: who else may read and write checkpoints, and whose directories are used. "private": on nodes nobody
            else; ``persistent_dir`` as the umask says. "umask": nodes too. "group": the directories' group may do what
            their owner may. "unchecked": as "umask", and nobody asks whose a directory is.
        sign_key_file: file with a key, 32 random bytes or more, that checkpoints are signed with, and that what is
            restored must be signed with; of the user's own and readable by nobody else. Or several: the first signs,
            all verify. None for no signatures. It may hold ``{node}``, ``{rank}``, ``{job}`` and ``$VARIABLES``.

    Raises:
        ConfigError: a setting that does not exist, an impossible value, or one that needs a feature this version does
            not have.
    """

    persistent_dir: str = _setting("persistent_dir", "ckpt")
    local_dir: str | None = _setting("local_dir", None)
    every: Mapping[str, int] | str = _setting("every", {})
    keep: Mapping[str, int] = _setting("keep", {})
    compression: str = _setting("compression", "auto")
    capture: str = _setting("capture", "eager")
    replicated: str | Mapping[str, str] = _setting("replicated", "auto")
    on_busy: str = _setting("on_busy", "wait")
    flush_bandwidth: float | None = _setting("flush_bandwidth", None)
    node_size: int | None = _setting("node_size", None)
    timeout: float = _setting("timeout", 600.0)
    kappa: float | None = _setting("kappa", None)
    parity_group: int | None = _setting("parity_group", None)
    parity_tolerate: int | None = _setting("parity_tolerate", None)
    encode_threads: int | None = _setting("encode_threads", None)
    incremental: bool = _setting("incremental", True)
    scrub_bandwidth: float | None = _setting("scrub_bandwidth", None)
    machine: str | None = _setting("machine", None)
    permissions: str = _setting("permissions", "private")
    protection: str = _setting("protection", "best")
    sign_key_file: str | Sequence[str] | None = _setting("sign_key_file", None)

    def __post_init__(self) -> None:
        for name in ("persistent_dir", "local_dir"):
            object.__setattr__(self, name, _check_directory(name, getattr(self, name)))
        object.__setattr__(self, "every", _check_every(self.every, self.local_dir))
        object.__setattr__(self, "keep", {**DEFAULT_KEEP, **_check_levels("keep", self.keep)})
        _check_choice("capture", self.capture, ("eager", "lazy"))
        object.__setattr__(self, "replicated", _check_replicated(self.replicated))
        _check_choice("on_busy", self.on_busy, ("wait", "skip"))
        _check_choice("permissions", self.permissions, access.PERMISSIONS)
        _check_choice("protection", self.protection, ("best", "strict"))
        _check_compression(self.compression)
        if not isinstance(self.incremental, bool):
            raise _refusal("incremental", self.incremental, "true or false")
        _check_positive("flush_bandwidth", self.flush_bandwidth, optional=True)
        _check_positive("timeout", self.timeout)
        if self.machine is not None and self.kappa is None:
            object.__setattr__(self, "kappa", _kappa_of(self.machine))
        _check_positive("kappa", self.kappa, optional=True, zero=True)
        for name, what in (("node_size", "ranks"), ("encode_threads", "threads")):
            number = getattr(self, name)
            if number is not None and (not _is_int(number) or number < 1):
                raise _refusal(name, number, f"a whole number of {what}, at least 1, or None")
        _check_positive("scrub_bandwidth", self.scrub_bandwidth, optional=True)
        _check_parity(self.parity_group, self.parity_tolerate)
        object.__setattr__(self, "sign_key_file", _check_key_files(self.sign_key_file))

    def shared_settings(self) -> dict[str, Any]:
        """The settings that must be equal on every rank (directories may differ through their placeholders)."""
        names = ["every", "keep", "compression", "capture", "replicated", "on_busy", "node_size", "timeout", "kappa"]
        names += ["parity_group", "parity_tolerate", "persistent_dir", "incremental", "permissions", "protection"]
        scrubbed = {"scrub_bandwidth": self.scrub_bandwidth is not None}  # all ranks take part or none
        return {name: getattr(self, name) for name in names} | scrubbed


def expand_directory(template: str, *, node: str, rank: int, job: str) -> Path:
    """Fill in ``{node}``, ``{rank}``, ``{job}``, ``$VARIABLES`` and ``~``; returns an absolute path.

    Raises:
        ConfigError: a variable is not set.
    """
    text = template.replace("{node}", node).replace("{rank}", str(rank)).replace("{job}", job)
    expanded = os.path.expanduser(os.path.expandvars(text))
    if "$" in expanded:
        raise ConfigError(
            "a directory names an environment variable that is not set",
            expected="every $VARIABLE to be set on this rank",
            found=repr(expanded),
            where=f"rank {rank}, template {template!r}",
            todo="export the variable in the job script, or write the directory out",
        )
    return Path(expanded).absolute()


def job_name() -> str:
    """The name of this job, for ``{job}``; "job" where no scheduler is found."""
    return scheduled_job() or "job"


def scheduled_job() -> str | None:
    """The scheduler's name for this job; None where no scheduler is found."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        if os.environ.get(name):
            return re.sub(r"[^\w.-]", "_", os.environ[name])
    return None


def launcher_world() -> tuple[str, int, int] | None:
    """What the launcher says of this process: (launcher, rank, world size), or None when there was none.

    Process managers are asked before Slurm's step variables, because mpirun inside a Slurm job starts its own
    daemons with srun.
    """
    for launcher, rank_name, size_name in (
        ("mpirun (PMI)", "PMI_RANK", "PMI_SIZE"),
        ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ):
        rank, size = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if rank.isdigit() and size.isdigit():
            return launcher, int(rank), int(size)
    return None


def failure_domain() -> str:
    """What this node shares with others, as Slurm's topology plug-in tells it (``switch1.switch2.node7`` without the
    node); "" where it does not.
    """
    return os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def node_name() -> str:
    """Name of this node as the scheduler calls it (several may share one host), otherwise the host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


# --- reading --------------------------------------------------------------------------------------------------------


def _configured() -> dict[str, Any]:
    known = {f.name for f in fields(Config)}
    found: dict[str, Any] = {}
    for source, values in (
        (CONFIG_FILE, _found_file()),
        (f"{ENVIRONMENT_PREFIX}* environment variables", _read_environment(os.environ)),
    ):
        for name in sorted(set(values) - known):
            raise no_such_setting(name, known, source)
        found |= values
    return found


def _found_file() -> dict[str, Any]:
    """``deeppart.toml`` in the working directory, unless a stranger has put it there."""
    path = Path(CONFIG_FILE)
    if not path.is_file():
        return {}
    try:
        access.check_found(path)
    except OSError as error:
        raise ConfigError(f"{path} is not obeyed", **{"found": str(error), **access.answers(error)}) from error
    return _read_file(path)


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}", found=str(error), where=str(path.absolute()), todo="correct or remove the file"
        ) from error


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML, has a number that Python refuses to read, or is too long or too deeply nested.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_TOML_BYTES + 1)
    if len(data) > _MOST_TOML_BYTES:
        raise ValueError(f"the file is longer than {_MOST_TOML_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("the file is nested too deeply") from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {
        "every": lambda text: text if text == AUTO else _read_counts(text),
        "keep": _read_counts,
        "flush_bandwidth": _read_size,
        "scrub_bandwidth": _read_size,
        "kappa": _read_size,
        "timeout": float,
        "node_size": int,
        "encode_threads": int,
        "incremental": _read_switch,
        "replicated": _read_modes,
        "parity_group": int,
        "parity_tolerate": int,
        "sign_key_file": lambda text: text.split(os.pathsep),
    }
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        try:
            values[name] = None if text == "" else readers.get(name, str)(text)
        except ValueError as error:
            raise ConfigError(
                f"cannot read the environment variable {variable}", found=repr(text), expected=str(error)
            ) from error
    return {name: value for name, value in values.items() if value is not None}


def _read_counts(text: str) -> dict[str, int]:
    """``local=1,persistent=4`` -> dict."""
    counts = {}
    for item in text.split(","):
        level, separator, count = item.partition("=")
        if not separator or not count.strip().isdigit():
            raise ValueError('LEVEL=COUNT, comma separated; every may be "auto"')
        counts[level.strip()] = int(count)
    return counts


def _read_modes(text: str) -> str | dict[str, str]:
    """``replay/*=none,best/*=rank0`` -> dict; a mode alone as it is."""
    if "=" not in text:
        return text
    modes = {}
    for item in text.split(","):
        pattern, separator, mode = item.rpartition("=")
        if not separator or not pattern.strip():
            raise ValueError("a mode, or GLOB=MODE, comma separated")
        modes[pattern.strip()] = mode.strip()
    return modes


def _read_switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _read_size(text: str) -> float:
    return read_bytes(text.strip().removesuffix("/s"))


def _kappa_of(machine: object) -> float:
    """Bytes that a rank copies in the time that one more tensor takes, by a machine file."""
    if not isinstance(machine, (str, os.PathLike)):
        raise _refusal("machine", machine, "the name of a file that `deeppart-sim calibrate` has written")
    path = Path(machine)
    if not path.is_file():
        raise _refusal("machine", str(machine), "a file that `deeppart-sim calibrate` has written; there is none")
    memory = _read_file(path).get("memory", {})
    try:
        return read_seconds(memory["tensor"]) * read_rate(memory["copy"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _refusal("machine", str(path), f"a table [memory] with `tensor` and `copy` ({error})") from error


# --- checking -------------------------------------------------------------------------------------------------------


def _refusal(name: str, value: object, expected: str, todo: str | None = None) -> ConfigError:
    return ConfigError(f"impossible value for {name}", expected=expected, found=_found(value), todo=todo)


def _found(value: object) -> str:
    try:
        return repr(value)[:500]
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_COUNT


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _refusal(name, value, "one of " + ", ".join(map(repr, choices)))


def _check_replicated(value: object) -> str | dict[str, str]:
    if not isinstance(value, Mapping):
        _check_choice("replicated", value, REPLICATED)
        assert isinstance(value, str)
        return value
    modes = (*REPLICATED, "rank0")
    for pattern, mode in value.items():
        if not isinstance(pattern, str) or not pattern or mode not in modes:
            expected = f"globs over paths with one of {', '.join(map(repr, modes))}"
            raise _refusal("replicated", dict(value), expected)
    return dict(value)


def _check_positive(name: str, value: object, *, optional: bool = False, zero: bool = False) -> None:
    if value is None and optional:
        return
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value <= sys.float_info.max
    if not good or not (value > 0 or (zero and value == 0)):  # type: ignore[operator]
        raise _refusal(name, value, "a finite number above 0" + (" (or 0)" if zero else ""))


def _check_compression(value: object) -> None:
    match = _COMPRESSION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not _LEAST_ZSTD <= int((match[1] or ":0")[1:]) <= _MOST_ZSTD:
        levels = f"LEVEL from {_LEAST_ZSTD} to {_MOST_ZSTD}"
        raise _refusal("compression", value, f"'auto', 'none', 'tensor', 'zstd' or 'zstd:LEVEL' with {levels}")


def _check_directory(name: str, value: object, what: str = "a directory name") -> str | None:
    if value is None and name == "local_dir":
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value or "\0" in value:
        todo = "settings have names: Config(**settings)" if isinstance(value, Mapping) else None
        raise _refusal(name, value, what, todo)
    for placeholder in re.findall(r"(?<!\$)\{(.*?)\}", value):
        if placeholder not in _PLACEHOLDERS:
            raise _refusal(name, value, f"placeholders among {_PLACEHOLDERS}", "write $NAME for variables")
    return value


def _check_key_files(files: object) -> tuple[str, ...] | None:
    """One file or several, as a tuple; None for none."""
    if files is None:
        return None
    several = [files] if isinstance(files, (str, os.PathLike)) else files
    if not isinstance(several, (list, tuple)) or not several:
        raise _refusal("sign_key_file", files, "the name of a file, or a list of names, or None")
    checked = tuple(_check_directory("sign_key_file", each, what="a file name") for each in several)
    return tuple(each for each in checked if each is not None)


def _check_levels(name: str, counts: object) -> dict[str, int]:
    if not isinstance(counts, Mapping):
        raise _refusal(name, counts, f"a mapping from levels ({', '.join(LEVELS)}) to whole numbers")
    for level, count in counts.items():
        if level not in LEVELS or not _is_int(count) or count < 0:
            raise _refusal(name, dict(counts), f"levels among {LEVELS} with whole numbers, at least 0")
    return dict(counts)


def _check_every(every: object, local_dir: str | None) -> Mapping[str, int] | str:
    """All levels but those that depend on the number of nodes; or "auto"."""
    if every == AUTO:
        return AUTO
    if isinstance(every, str):
        raise _refusal("every", every, "'auto', or a mapping from levels to whole numbers")
    found = {**DEFAULT_EVERY, **_check_levels("every", every)}
    if local_dir is None:
        found["local"] = 0
    _check_redundant(found)
    if not any(found.values()):
        raise _refusal("every", found, "at least one level above 0", "set persistent_dir or local_dir")
    return found


def _check_redundant(every: Mapping[str, int]) -> None:
    """The levels that copy the local level's parts need these to be there."""
    for level in REDUNDANT_LEVELS:
        count = every.get(level, 0)
        if count and (not every["local"] or count % every["local"]):
            raise _refusal(
                "every",
                {"local": every["local"], level: count},
                f"{level} only where `local` goes too: it works on the parts that the local level has stored",
                "set local_dir, and every[level] to a multiple of every['local']",
            )


def _check_parity(group: int | None, tolerate: int | None) -> None:
    if group is not None and (not _is_int(group) or not 2 <= group <= MOST_PARITY_GROUP):
        raise _refusal("parity_group", group, f"a whole number of nodes from 2 to {MOST_PARITY_GROUP}, or None")
    if tolerate is not None and (not _is_int(tolerate) or tolerate < 1):
        raise _refusal("parity_tolerate", tolerate, "a whole number of nodes, at least 1, or None")
    if group is not None and (tolerate or DEFAULT_PARITY_TOLERATE) >= group:
        raise _refusal(
            "parity_tolerate", tolerate or DEFAULT_PARITY_TOLERATE, f"fewer than parity_group, which is {group}"
        )
