"""The request of a caller of ``restore``: which leaves, under which names, and which differences are allowed.

Names of one model may differ by words that wrappers insert: ``DistributedDataParallel`` ``module.``, ``torch.compile``
``_orig_mod.``, and others for FSDP1 and activation checkpointing, around the whole model or a part of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import xxhash

from deeppart.errors import ConfigError, DeeppartError, StateError
from deeppart.state.paths import Key, Path, component, covers, may_match_below, readable

#: Differences: the checkpoint lacks a live item, or the live state lacks a saved one.
MISSING, UNEXPECTED = "missing", "unexpected"
#: The expected form of a rule of ``rename``.
_ONE_DICT = "a rule that gives keys of one dict other names: with `/`, two paths that differ in the last name alone"
#: True, False, or a function ``(path, "missing" or "unexpected") -> bool`` that returns true to allow a difference.
Strict = bool | Callable[[str, str], bool]
#: Globs over paths: one, or several.
Globs = str | Sequence[str]
#: The words that wrappers insert between the dots of a name.
_WORDS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of ``restore`` that select.

    Attributes:
        keys: globs over paths of the live state; items outside them are not restored. None: everything.
        exclude: globs of items that are not restored.
        strict: whether live leaves that the checkpoint lacks are refused, and leaves that the live state lacks are
            created; or a function that decides for each.
        cast: floating-point leaves may have another dtype, but not another shape, in the checkpoint.
        rules: pairs of a pattern of saved names and their names here (``rename``).
        settings: the globs in ``exclude`` that come from the configuration.
        is_default: true if the caller has used none of these.
    """

    keys: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    strict: Strict = True
    cast: bool = False
    rules: tuple[tuple[str, str], ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """True if the caller has used none of the arguments."""
        return self == Request()

    def covers(self, path: Path) -> bool:
        """True if ``keys`` cover the item at a path itself, not only a container above it."""
        return self.keys is None or (bool(path) and covers(readable(path), self.keys, container=True))

    def excludes(self, path: Path) -> bool:
        """True if ``exclude`` covers the item at a path."""
        return bool(self.exclude) and bool(path) and covers(readable(path), self.exclude, container=True)

    def may_choose_below(self, path: Path) -> bool:
        """True if an item below a path may be covered without the path itself."""
        return _may_cover_below(path, self.keys)

    def may_exclude_below(self, path: Path) -> bool:
        """True if an item below a path may be excluded."""
        return _may_cover_below(path, self.exclude)

    def asks_for(self, path: Path) -> bool:
        """True if the item at a path, or a container above it, is covered, and none of these is excluded."""
        ends = range(1, len(path) + 1)
        chosen = self.keys is None or any(self.covers(path[:end]) for end in ends)
        return chosen and not any(self.excludes(path[:end]) for end in ends)

    def accepts(self, path: Path, difference: str) -> bool:
        """True if a difference at a path is allowed: the live item stays, or the saved one is left out."""
        if not callable(self.strict):
            return not self.strict
        try:
            return bool(self.strict(readable(path), difference))
        except DeeppartError:
            raise
        except Exception as error:
            raise StateError(
                "the function that was given as strict failed",
                found=f"{type(error).__name__}: {error}",
                where=f"path {readable(path)}",
                todo='it is called as function(path, "missing" or "unexpected"), before anything is changed',
            ) from error

    def digest(self) -> int:
        """A number with which ranks compare their requests; of a function it only says that there is one."""
        if self.is_default:
            return 0
        text = repr(replace(self, strict=None if callable(self.strict) else self.strict))  # type: ignore[arg-type]
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "backslashreplace")) >> 1

    def without(self, excluded: Sequence[str]) -> Request:
        """The request with additional exclusions: the globs of the ``exclude`` setting."""
        settings = tuple(each for each in excluded if each not in self.exclude)
        return replace(self, exclude=(*self.exclude, *settings), settings=settings) if excluded else self

    def renamed(self, path: Path, key: Key) -> tuple[Key, int | None]:
        """The name of a saved key here, and the number of the rule that renames it."""
        if type(key) is str:
            for number, (pattern, name) in enumerate(self.rules):
                text = readable((*path, key)) if "/" in pattern else component(key)
                if (match := _compiled(pattern).fullmatch(text)) is not None:
                    return _written(name, match, key), number
        return key, None


def _may_cover_below(path: Path, globs: Sequence[str] | None) -> bool:
    if not globs:
        return False
    text = readable(path)
    return any(may_match_below(text, glob) for glob in globs)


class RestoreArguments(TypedDict, total=False):
    """The keyword arguments of ``restore`` besides ``step`` and ``per_rank``.

    Example:
        >>> import deeppart
        >>> model_alone: deeppart.types.RestoreArguments = {"keys": "model/*", "strict": False}
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"model": {"w": 1.5}, "epoch": 3}, step=100)
        ...     live = {"model": {"w": 0.0}, "epoch": 0}
        ...     step = checkpointer.restore(live, **model_alone)
        >>> live
        {'model': {'w': 1.5}, 'epoch': 0}
    """

    keys: Globs | None
    exclude: Globs | None
    strict: Strict
    cast: bool
    rename: Mapping[str, str] | None
    required: bool


def request_or_refusal(*arguments: Any) -> tuple[Request, ConfigError | None]:
    """The request, or a default one and the error of :func:`request_of`, which other ranks have to receive too."""
    try:
        return request_of(*arguments), None
    except ConfigError as error:
        return Request(), error


def request_of(
    keys: Globs | None = None,
    exclude: Globs | None = None,
    strict: Strict = True,
    cast: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Request:
    """The request from these arguments of ``restore``."""
    if not isinstance(strict, bool) and not callable(strict):
        raise _impossible("strict", 'True, False or a function (path, "missing" or "unexpected") -> bool', strict)
    if not isinstance(cast, bool):
        raise _impossible("cast", "True or False", cast)
    return Request(
        None if keys is None else _globs("keys", keys),
        () if exclude is None else _globs("exclude", exclude),
        strict,
        cast,
        _rules(rename),
    )


def _globs(name: str, given: Globs) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else given
    is_some = isinstance(found, (list, tuple, set, frozenset)) and all(isinstance(each, str) and each for each in found)
    if not is_some or (name == "keys" and not found):
        raise _impossible(name, 'a glob over paths, or several: "model/*"', given)
    return tuple(sorted(set(found)))


def _rules(rename: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if rename is None:
        return ()
    expected = 'saved names -> names here: {"module.*": "*"}; each `*` of a name stands for what one of the pattern met'
    if not isinstance(rename, Mapping) or not all(isinstance(text, str) for pair in rename.items() for text in pair):
        raise _impossible("rename", expected, rename)
    for pattern, name in rename.items():
        if not pattern or not name or name.count("*") > pattern.count("*"):
            raise _impossible("rename", expected, {pattern: name})
        if ("/" in name) != ("/" in pattern) or pattern.rpartition("/")[0] != name.rpartition("/")[0]:
            todo = (
                "nothing moves to another depth; to rename a container, write a rule for each level, those above it "
                "under their names here"
            )
            raise _impossible("rename", _ONE_DICT, {pattern: name}, todo)
    return tuple(rename.items())


@functools.lru_cache(maxsize=256)  # used for every key of a state
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("([^/]*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _written(name: str, match: re.Match[str], key: str) -> str:
    """The new name: the last component of the renamed path."""
    pieces, met = name.split("*"), match.groups()
    text = pieces[0] + "".join(found + piece for found, piece in zip(met, pieces[1:], strict=False))
    last = text.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    return last or key


def _impossible(name: str, expected: str, found: object, todo: str | None = None) -> ConfigError:
    return ConfigError(f"impossible value for {name}", expected=expected, found=repr(found), todo=todo)


# --- names that differ by wrappers ------------------------------------------------------------------------------------


def aligned(saved: Sequence[Key], live: Sequence[Key], *, whole: bool) -> dict[str, str]:
    """Saved names -> live names of one dict, where they differ only by wrappers; {} if none do."""
    if not saved or not live:
        return {}
    common = len(set(saved) & set(live))
    if common == len(saved) or common == len(live) or not all(type(key) is str for key in (*saved, *live)):
        return {}
    theirs, mine = ({bare_name(name): name for name in names} for names in (saved, live))
    if len(theirs) != len(saved) or len(mine) != len(live):
        return {}
    if theirs.keys() != mine.keys() if whole else len(theirs.keys() & mine.keys()) <= common:
        return {}
    return {name: mine[bare] for bare, name in theirs.items() if bare in mine and name != mine[bare]}


def bare_name(name: str) -> str:
    """A name without the words of wrappers."""
    return ".".join(word for word in name.split(".") if word not in _WORDS)
