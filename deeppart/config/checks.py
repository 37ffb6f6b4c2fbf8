"""Checks of settings: each check returns the value in canonical form, or raises an error with what was expected."""

from __future__ import annotations

import numbers
import os
import re
import sys
from collections.abc import Iterable, Mapping

from deeppart.errors import ConfigError
from deeppart.model import DEFAULT_KEEP, EXPECTED, LEVELS, REDUNDANT_LEVELS, Compression, Level, meant

#: Without "partner", which depends on the number of nodes, unknown to a configuration.
DEFAULT_EVERY: Mapping[str, int] = {Level.LOCAL: 1, Level.PARITY: 0, Level.PERSISTENT: 1}
#: The value of ``every`` that lets the library decide.
AUTO = "auto"
DEFAULT_PARITY_TOLERATE = 1
#: Size of groups without `parity_group`; all nodes if there are fewer.
DEFAULT_PARITY_GROUP = 8
MOST_PARITY_GROUP = 127
#: Upper bound of steps, ranks, threads: counts have 32 bits.
_MOST_COUNT = 2**31 - 1
#: Bytes of a secret: shorter ones could be guessed.
LEAST_SECRET_BYTES = 32
MOST_SECRET_BYTES = 64 << 10
#: Modes for leaves of which ranks may have replicas.
REPLICATED = ("auto", "all", "none", "verify", "rotate", "parts")
_PLACEHOLDERS = ("node", "rank", "job")


def refusal(name: str, value: object, expected: str, todo: str | None = None) -> ConfigError:
    """The error that says which values are possible."""
    return ConfigError(f"impossible value for {name}", expected=expected, found=_found(value), todo=todo)


def _found(value: object) -> str:
    try:
        return repr(value)[:500]
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"


def plain(value: object) -> object:
    """The value; a number of another type, such as numpy's, as a Python number."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def is_int(value: object) -> bool:
    """True for an integer of 32 bits; not for True and False."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_COUNT


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """The choice that equals the value."""
    for choice in choices:
        if value == choice:
            return choice
    raise refusal(name, value, "one of " + ", ".join(map(repr, choices)))


def check_switch(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "true or false")
    return value


def check_replicated(name: str, value: object) -> str | dict[str, str]:
    """A mode, or a mapping from globs to modes."""
    if not isinstance(value, Mapping):
        return check_choice(name, value, REPLICATED)
    modes = (*REPLICATED, "rank0")
    for pattern, mode in value.items():
        if not isinstance(pattern, str) or not pattern or mode not in modes:
            expected = f"globs over paths with one of {', '.join(map(repr, modes))}"
            raise refusal(name, dict(value), expected)
    return dict(value)


def check_globs(name: str, value: object) -> tuple[str, ...]:
    """A glob, or several."""
    globs = (value,) if isinstance(value, str) else value
    if not isinstance(globs, (list, tuple)) or not all(isinstance(glob, str) and glob for glob in globs):
        raise refusal(name, value, "a glob over paths, or a list of them")
    return tuple(globs)


def check_positive(name: str, value: object, *, optional: bool = False, zero: bool = False) -> object:
    """A finite number above 0."""
    if value is None and optional:
        return value
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value <= sys.float_info.max
    if not good or not (value > 0 or (zero and value == 0)):  # type: ignore[operator]
        raise refusal(name, value, "a finite number above 0" + (" (or 0)" if zero else ""))
    return value


def check_count(name: str, value: object, what: str, *, optional: bool = False) -> object:
    """A positive integer."""
    if not (value is None and optional) and (not is_int(value) or value < 1):  # type: ignore[operator]
        raise refusal(name, value, f"a whole number of {what}, at least 1" + (", or None" if optional else ""))
    return value


def check_compression(name: str, value: object) -> object:
    """The name of a codec, with a level if it has levels."""
    if Compression.parse(value) is None:
        raise refusal(name, value, EXPECTED)
    return value


def refuse_url(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse paths of object stores: they would become a directory ``s3:`` in the working directory."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", os.fspath(path)):
        raise ConfigError(
            f"{name} is a URL, and not a path",
            expected="a path on a file system that is mounted",
            found=repr(os.fspath(path)),
            todo="give a path, without scheme; a bucket can be mounted (mountpoint-s3, gcsfuse, rclone mount)",
        )


def check_directory(name: str, value: object, what: str = "a directory name") -> str:
    """The name of a directory or file with known placeholders."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value or "\0" in value:
        todo = "settings have names: Config(**settings)" if isinstance(value, Mapping) else None
        raise refusal(name, value, what, todo)
    refuse_url(name, value)
    for placeholder in re.findall(r"(?<!\$)\{(.*?)\}", value):
        if placeholder not in _PLACEHOLDERS:
            raise refusal(name, value, f"placeholders among {_PLACEHOLDERS}", "write $NAME for variables")
    return value


def check_optional(name: str, value: object) -> str | None:
    """The name of a directory or file with known placeholders; None for none."""
    return None if value is None else check_directory(name, value, what="a name, or None")


def check_key_files(name: str, files: object) -> tuple[str, ...] | None:
    """One file or several, as a tuple; None for none."""
    if files is None:
        return None
    several = [files] if isinstance(files, (str, os.PathLike)) else files
    if not isinstance(several, (list, tuple)) or not several:
        raise refusal(name, files, "the name of a file, or a list of names, or None")
    return tuple(check_directory(name, each, what="a file name") for each in several)


def check_levels(name: str, counts: object) -> dict[str, int]:
    """A mapping from levels to integers, as a dict."""
    if not isinstance(counts, Mapping):
        count = counts if isinstance(counts, int) and is_int(counts) else 1
        level = Level.PERSISTENT
        todo = f'write {name}={{"{level}": {count}}}, in deeppart.toml {name} = {{{level} = {count}}}, for instance'
        raise refusal(name, counts, f"a mapping from levels ({', '.join(LEVELS)}) to whole numbers", todo)
    found = {level: plain(count) for level, count in counts.items()}
    whole = {level: count for level, count in found.items() if isinstance(count, int) and is_int(count) and count >= 0}
    if whole.keys() != found.keys() or not whole.keys() <= set(LEVELS):
        advice = _meant_levels(level for level in found if level not in LEVELS)
        raise refusal(name, dict(counts), f"levels among {LEVELS} with whole numbers, at least 0", advice)
    return whole


def _meant_levels(strange: Iterable[object]) -> str | None:
    """Suggestions for misspelt levels."""
    found = [(each, meant(str(each), LEVELS)) for each in strange]
    return "; ".join(f"write {close!r} for {each!r}" for each, close in found if close) or None


def check_keep(name: str, value: object) -> Mapping[str, int]:
    """A number for each level."""
    return {**DEFAULT_KEEP, **check_levels(name, value)}


def check_every(name: str, every: object) -> Mapping[str, int] | str:
    """Levels with their numbers, or "auto"."""
    if every == AUTO:
        return AUTO
    if isinstance(every, str):
        todo = f'write every="auto", or every={{"{Level.PERSISTENT}": 1}}, for instance'
        raise refusal(name, every, "'auto', or a mapping from levels to whole numbers", todo)
    return check_levels(name, every)


def complete_every(every: Mapping[str, int] | str, local_dir: str | None) -> Mapping[str, int] | str:
    """All levels except those that depend on the number of nodes; or "auto"."""
    if isinstance(every, str):
        return every
    found = {**DEFAULT_EVERY, **every}
    if local_dir is None:
        found[Level.LOCAL] = 0
    _check_redundant(found)
    if not any(found.values()):
        raise refusal("every", found, "at least one level above 0", "set persistent_dir or local_dir")
    return found


def _check_redundant(every: Mapping[str, int]) -> None:
    """Check that levels that copy the local level's parts are not used without it."""
    for level in REDUNDANT_LEVELS:
        count = every.get(level, 0)
        if count and (not every[Level.LOCAL] or count % every[Level.LOCAL]):
            raise refusal(
                "every",
                {Level.LOCAL: every[Level.LOCAL], level: count},
                f"{level} only at checkpoints that go to `local`: it works on the parts stored there",
                "set local_dir, and every[level] to a multiple of every['local']",
            )


def check_parity(group: int | None, tolerate: int | None) -> None:
    """The size of a parity group, and how many of its nodes may be lost."""
    if group is not None and not 2 <= group <= MOST_PARITY_GROUP:
        raise refusal("parity_group", group, f"a whole number of nodes from 2 to {MOST_PARITY_GROUP}, or None")
    if group is not None and (tolerate or DEFAULT_PARITY_TOLERATE) >= group:
        raise refusal(
            "parity_tolerate", tolerate or DEFAULT_PARITY_TOLERATE, f"fewer than parity_group, which is {group}"
        )
