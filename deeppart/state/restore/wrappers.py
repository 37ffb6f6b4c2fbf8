"""Names of one model, as different wrappers call its parameters.

``DistributedDataParallel`` puts ``module.`` into the names of what it wraps, ``torch.compile`` ``_orig_mod.``. FSDP1
and activation checkpointing have words of their own. They may be around a whole model or a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from deeppart.state.tree.paths import Key

#: What they put between the dots of a name.
_WORDS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


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
