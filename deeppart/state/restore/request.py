"""What a caller of ``restore`` asks for: which leaves, under which names, and what may differ.

Names of one model differ by what wrappers put into them: ``DistributedDataParallel`` ``module.``, ``torch.compile``
``_orig_mod.``; FSDP1 and activation checkpointing have words of their own. They may be around a whole model or a part
of it.
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

#: How a live state may differ: it has what the checkpoint lacks, or lacks what the checkpoint has.
MISSING, UNEXPECTED = "missing", "unexpected"
#: What a rule of ``rename`` does.
_ONE_DICT = "a rule that gives keys of one dict other names: with `/`, two paths that differ in the last name alone"
#: True, False, or a function ``(path, "missing" or "unexpected") -> bool``: True where a difference is left as it is.
Strict = bool | Callable[[str, str], bool]
#: Globs over paths: one, or several.
Globs = str | Sequence[str]
#: What they put between the dots of a name.
_WORDS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a restore that choose.

    Attributes:
        keys: globs over paths of the live state; what they do not cover stays as it is. None: everything.
        exclude: globs of what stays as it is, even so.
        strict: whether live leaves that the checkpoint lacks are refused, and what the live state lacks is created; a
            function of the caller decides for each.
        cast: floating-point leaves of one shape may have another dtype in the checkpoint.
        rules: pairs of a pattern of saved names and what they are called here (``rename``).
        settings: those of ``exclude`` that are not the caller's, but from the configuration.
        is_default: true if the caller has asked for nothing of all this.
    """

    keys: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    strict: Strict = True
    cast: bool = False
    rules: tuple[tuple[str, str], ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """True if the caller has asked for nothing of all this."""
        return self == Request()

    def covers(self, path: Path, *, container: bool = True) -> bool:
        """True if ``keys`` cover what is at a path; not asked of what only lies below it."""
        return self.keys is None or (bool(path) and covers(readable(path), self.keys, container=container))

    def excludes(self, path: Path, *, container: bool = True) -> bool:
        """True if ``exclude`` covers what is at a path."""
        return bool(self.exclude) and bool(path) and covers(readable(path), self.exclude, container=container)

    def may_choose_below(self, path: Path) -> bool:
        """True if something below a path may be covered that is not covered together with it."""
        text = readable(path)
        return any(may_match_below(text, pattern) for pattern in self.keys or ())

    def may_exclude_below(self, path: Path) -> bool:
        """True if something below a path may be excluded."""
        text = readable(path)
        return any(may_match_below(text, pattern) for pattern in self.exclude)

    def asks_for(self, path: Path) -> bool:
        """True if what is at a path, or anything that contains it, is covered, and nothing of that is excluded."""
        ends = range(1, len(path) + 1)
        chosen = self.keys is None or any(self.covers(path[:end]) for end in ends)
        return chosen and not any(self.excludes(path[:end]) for end in ends)

    def accepts(self, path: Path, difference: str) -> bool:
        """True if a difference at a path is left as it is: the live item, or what was saved."""
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
        """A number by which ranks tell whether they ask for the same; of a function, that there is one."""
        if self.is_default:
            return 0
        text = repr(replace(self, strict=None if callable(self.strict) else self.strict))  # type: ignore[arg-type]
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "backslashreplace")) >> 1

    def without(self, excluded: Sequence[str]) -> Request:
        """The same, and what the configuration leaves out of checkpoints stays as it is."""
        settings = tuple(each for each in excluded if each not in self.exclude)
        return replace(self, exclude=(*self.exclude, *settings), settings=settings) if excluded else self

    def renamed(self, path: Path, key: Key) -> tuple[Key, int | None]:
        """What a saved key is called here, and the number of the rule that says so."""
        if type(key) is str:
            for number, (pattern, name) in enumerate(self.rules):
                if (match := matched(pattern, path, key)) is not None:
                    return _written(name, match, key), number
        return key, None


class RestoreArguments(TypedDict, total=False):
    """What ``restore`` takes by name besides ``step`` and ``per_rank``.

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
    """:func:`request_of`, and, where it raises, what: other ranks are to hear of it."""
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
    """The request that a caller of ``restore`` makes by these arguments."""
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
            raise _impossible("rename", _ONE_DICT, {pattern: name}, _by_level(pattern.split("/"), name.split("/")))
    return tuple(rename.items())


def _by_level(old: list[str], new: list[str]) -> str:
    """How to write a rule that names another container."""
    if len(old) != len(new):
        return "nothing moves to another depth: nest the state as the checkpoint does, or take it from deeppart.load()"
    levels = [[*new[:at], name] for at, name in enumerate(old)]
    rules = {"/".join(each): "/".join(new[: len(each)]) for each in levels if each[-1] != new[len(each) - 1]}
    return f"write a rule for each level, those above it under their names here: rename={rules}"


def matched(pattern: str, path: Path, key: str) -> re.Match[str] | None:
    """What the pattern of a rule of ``rename`` makes of a key of the dict at a path; None if it does not match."""
    text = readable((*path, key)) if "/" in pattern else component(key)
    return _compiled(pattern).fullmatch(text)


@functools.lru_cache(maxsize=256)  # asked of every key of a state
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("([^/]*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _written(name: str, match: re.Match[str], key: str) -> str:
    """The new name: the last component of the text that a rule makes."""
    pieces, met = name.split("*"), match.groups()
    text = pieces[0] + "".join(found + piece for found, piece in zip(met, pieces[1:], strict=False))
    last = text.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    return last or key


def _impossible(name: str, expected: str, found: object, todo: str | None = None) -> ConfigError:
    return ConfigError(f"impossible value for {name}", expected=expected, found=repr(found), todo=todo)


# --- names that differ by wrappers ------------------------------------------------------------------------------------


def aligned(saved: Sequence[Key], live: Sequence[Key], *, whole: bool) -> dict[str, str]:
    """Saved names -> live names of one dict, where they differ by wrappers alone; {} where they do not."""
    if not saved or not live:
        return {}
    common = len(set(saved) & set(live))
    if common == len(saved) or common == len(live) or not all(type(key) is str for key in (*saved, *live)):
        return {}
    theirs, mine = bare_names(saved), bare_names(live)
    if len(theirs) != len(saved) or len(mine) != len(live):
        return {}
    if theirs.keys() != mine.keys() if whole else len(theirs.keys() & mine.keys()) <= common:
        return {}
    return {name: mine[bare] for bare, name in theirs.items() if bare in mine and name != mine[bare]}


def counterpart(name: Key, live: Sequence[Key]) -> Key:
    """The one live name that differs from a name by wrappers alone; the name itself where there is none."""
    return counterparts([name], live)[0]


def counterparts(names: Sequence[Key], live: Sequence[Key]) -> list[Key]:
    """Of each name the one live name that differs from it by wrappers alone; the name itself where there is none."""
    found: dict[str, list[Key]] = {}
    for key in live:
        if type(key) is str:
            found.setdefault(bare_name(key), []).append(key)
    alike = [found.get(bare_name(name), []) if type(name) is str else [] for name in names]
    return [keys[0] if len(keys) == 1 else name for name, keys in zip(names, alike, strict=True)]


def bare_name(name: str) -> str:
    """A name without what wrappers put into it."""
    return ".".join(word for word in name.split(".") if word not in _WORDS)


def bare_names(names: Sequence[str]) -> dict[str, str]:
    """Name without what wrappers put into it -> name."""
    return {bare_name(name): name for name in names}
