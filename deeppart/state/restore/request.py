"""What a caller of ``restore`` asks for: which leaves, under which names, and what may differ.

Names of one model differ by what wrappers put into them: ``DistributedDataParallel`` ``module.``, ``torch.compile``
``_orig_mod.``; FSDP1 and activation checkpointing have words of their own. They may be around a whole model or a part
of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import xxhash

from deeppart.errors import ConfigError
from deeppart.state.tree.globs import covers, may_match_below
from deeppart.state.tree.paths import Key, Path, component, readable

#: What is done with live leaves that the checkpoint lacks.
ERROR, KEEP = "error", "keep"
#: What is done with saved items that the live state lacks, besides ``ERROR``.
CREATE, IGNORE = "create", "ignore"
#: What a rule of ``rename`` does.
_ONE_DICT = "a rule that gives keys of one dict other names: with `/`, two paths that differ in the last name alone"
#: "error", "keep", or a function that is called with the path and the live leaf, once everything else is restored.
OnMissing = str | Callable[[str, Any], object]
#: "error", "create", "ignore", or a function that is called with the path of what is left out.
OnUnexpected = str | Callable[[str], object]
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
        missing: "error" or "keep": live leaves that the checkpoint lacks.
        unexpected: "error", "create" or "ignore": what the live state lacks.
        cast: floating-point leaves of one shape may have another dtype in the checkpoint.
        rules: pairs of a pattern of saved names and what they are called here (``rename``).
        settings: those of ``exclude`` that are not the caller's, but from the configuration.
        is_default: true if the caller has asked for nothing of all this.
    """

    keys: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    missing: str = ERROR
    unexpected: str = CREATE
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

    def digest(self) -> int:
        """A number by which ranks tell whether they ask for the same."""
        return 0 if self.is_default else xxhash.xxh3_64_intdigest(repr(self).encode("utf-8", "backslashreplace")) >> 1

    def renamed(self, path: Path, key: Key) -> tuple[Key, int | None]:
        """What a saved key is called here, and the number of the rule that says so."""
        if type(key) is str:
            for number, (pattern, name) in enumerate(self.rules):
                if (match := matched(pattern, path, key)) is not None:
                    return _written(name, match, key), number
        return key, None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the functions that are told of it.

    Attributes:
        request: what to restore.
        on_missing: called with the path and the live item of each that the checkpoint lacks, or None.
        on_unexpected: called with the path of each saved item that the live state lacks and is left out, or None.
    """

    request: Request = field(default_factory=Request)
    on_missing: Callable[[str, Any], object] | None = None
    on_unexpected: Callable[[str], object] | None = None

    def without(self, excluded: Sequence[str]) -> Asked:
        """The same, and what the configuration leaves out of checkpoints stays as it is."""
        if not excluded:
            return self
        settings = tuple(each for each in excluded if each not in self.request.exclude)
        return replace(
            self, request=replace(self.request, exclude=(*self.request.exclude, *settings), settings=settings)
        )


class RestoreArguments(TypedDict, total=False):
    """What ``restore`` takes by name besides ``step`` and ``per_rank``.

    Example:
        >>> import deeppart
        >>> model_alone: deeppart.RestoreArguments = {"keys": "model/*", "strict": False}
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"model": {"w": 1.5}, "epoch": 3}, step=100)
        ...     live = {"model": {"w": 0.0}, "epoch": 0}
        ...     step = checkpointer.restore(live, **model_alone)
        >>> live
        {'model': {'w': 1.5}, 'epoch': 0}
    """

    keys: Globs | None
    exclude: Globs | None
    strict: bool
    cast: bool
    rename: Mapping[str, str] | None
    on_missing: OnMissing | None
    on_unexpected: OnUnexpected | None
    required: bool


def asked_or_refusal(*arguments: Any) -> tuple[Asked, ConfigError | None]:
    """:func:`asked_of`, and, where it raises, what: other ranks are to hear of it."""
    try:
        return asked_of(*arguments), None
    except ConfigError as error:
        return Asked(), error


def asked_of(
    keys: Globs | None,
    exclude: Globs | None,
    strict: bool,
    cast: bool,
    rename: Mapping[str, str] | None,
    on_missing: OnMissing | None,
    on_unexpected: OnUnexpected | None,
) -> Asked:
    """The request that a caller of ``restore`` makes by these arguments."""
    for name, flag in (("strict", strict), ("cast", cast)):
        if not isinstance(flag, bool):
            raise _impossible(name, "True or False", flag)
    missing = KEEP if callable(on_missing) else on_missing
    if missing not in (None, ERROR, KEEP):
        raise _impossible("on_missing", '"error", "keep" or a function (path, live leaf)', on_missing)
    unexpected = IGNORE if callable(on_unexpected) else on_unexpected
    if unexpected not in (None, ERROR, CREATE, IGNORE):
        raise _impossible("on_unexpected", '"error", "create", "ignore" or a function (path)', on_unexpected)
    request = Request(
        None if keys is None else _globs("keys", keys),
        () if exclude is None else _globs("exclude", exclude),
        missing or (ERROR if strict else KEEP),
        unexpected or (CREATE if strict else IGNORE),
        cast,
        _rules(rename),
    )
    told = on_missing if callable(on_missing) else None, on_unexpected if callable(on_unexpected) else None
    return Asked(request, *told)


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
