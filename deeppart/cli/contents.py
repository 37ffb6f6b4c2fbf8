"""The content of a checkpoint as ``deeppart show`` prints it: a tree, a line for each leaf, or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json, printable
from deeppart.cli.output import (
    console,
    count,
    manifest_json,
    moment,
    progress_bar,
    record_json,
    to_json,
    unchecked_line,
)
from deeppart.cli.values import cut, json_value, value_text
from deeppart.model import show_bytes
from deeppart.offline.inspect.contents import Container, Contents, Leaf, Node, Value, read_contents
from deeppart.offline.inspect.leaf_statistics import Statistics, read_statistics
from deeppart.offline.inspect.listing import name_ranks
from deeppart.offline.statistics import Stats
from deeppart.part import Signing
from deeppart.state.tree.paths import KIND_NAMES

_MOST_RANKS = 4
#: Columns that a table of paths is aligned to; a longer path pushes its own line out, and not all others.
_MOST_PATH_COLUMNS = 160


def show_contents(
    directory: Path,
    keys: tuple[str, ...],
    step: int | None,
    signing: Signing | None,
    *,
    flat: bool,
    stats: bool,
    as_json: bool,
) -> int:
    """Print the content of a checkpoint; returns the exit code."""
    if stats:
        with progress_bar(console(), shown=not as_json) as progress:
            task = progress.add_task("", total=None)
            contents, found = read_statistics(
                directory, step, keys, signing, lambda done, total: progress.update(task, completed=done, total=total)
            )
    else:
        contents, found = read_contents(directory, step, keys, signing), None
    if as_json:
        print_json({**_document(directory, contents, found), "signature_checked": signing is not None})
    elif flat:
        _print_flat(contents, found)
    else:
        _print_tree(contents, found)
    if signing is None and contents.manifest.signed and not as_json:
        console().print(unchecked_line(contents.manifest.attempt.step), style="yellow", soft_wrap=True)
    return NOT_GOOD if _problems(contents, found) else GOOD


def _problems(contents: Contents, stats: Statistics | None) -> tuple[str, ...]:
    return contents.problems + (() if stats is None else stats.problems)


# --- JSON -----------------------------------------------------------------------------------------------------------


def _document(directory: Path, contents: Contents, stats: Statistics | None) -> dict[str, Any]:
    return {
        **manifest_json(contents.manifest),
        **record_json(contents, without=("manifest", "tree")),
        "directory": str(directory),
        "totals": _totals(contents),
        "leaves": [
            _leaf_json(leaf, stats) if isinstance(leaf, Leaf) else _value_json(leaf) for leaf in contents.leaves()
        ],
        "problems": list(_problems(contents, stats)),
    }


def _totals(contents: Contents) -> dict[str, int]:
    """Counts and bytes of what is shown; the files' bytes are those of the whole checkpoint."""
    leaves = [leaf for leaf in contents.leaves() if isinstance(leaf, Leaf)]
    return {
        "leaves": len(leaves),
        "values": sum(1 for leaf in contents.leaves() if isinstance(leaf, Value)),
        "replicated_bytes": sum(leaf.stored_bytes for leaf in leaves if leaf.per_rank is None and leaf.shards is None),
        "sharded_bytes": sum(leaf.stored_bytes for leaf in leaves if leaf.shards is not None),
        "per_rank_bytes": sum(leaf.stored_bytes for leaf in leaves if leaf.per_rank is not None),
        "file_bytes": contents.manifest.nbytes,
        "referenced_bytes": contents.manifest.referenced_bytes,
    }


def _leaf_json(leaf: Leaf, stats: Statistics | None) -> dict[str, Any]:
    document = {"kind": "leaf", **record_json(leaf, "nbytes", "stored_bytes", without=("key",))}
    if stats is not None:
        own = None if leaf.per_rank is None else {rank: stats.of(leaf, rank) for rank in leaf.per_rank}
        document |= {"stats": to_json(stats.of(leaf)), "stats_per_rank": to_json(own)}
    return document


def _value_json(value: Value) -> dict[str, Any]:
    own = value.per_rank
    found = value.value if own is None else next(iter(own.values()), None)
    return {
        "kind": "value",
        "path": value.path,
        "type": type(found).__name__,
        "value": None if own is not None else json_value(found),
        "per_rank": None if own is None else [[rank, json_value(each)] for rank, each in own.items()],
    }


# --- for people -----------------------------------------------------------------------------------------------------


def _print_tree(contents: Contents, stats: Statistics | None) -> None:
    out = console()
    tree = Tree(_heading(contents), guide_style="dim")
    _grow(tree, contents.tree, stats)
    out.print(tree, soft_wrap=not out.is_terminal)
    _print_end(contents, stats)


def _grow(tree: Tree, node: Node, stats: Statistics | None, key: str | None = None) -> None:
    if not isinstance(node, Container):
        tree.add(Text.assemble((printable(key or node.path), "bold"), "  ", *_description(node, stats)))
        return
    if node.kind == "object":  # its state_dict() has no path of its own
        inner, name = node.children[0][1], node.name
    else:
        inner, name = node, " ".join(filter(None, (KIND_NAMES.get(node.kind, node.kind), node.name)))
    children = inner.children if isinstance(inner, Container) else ((None, inner),)
    kind = f"{printable(name)} of {len(children)}"
    branch = tree.add(Text.assemble((printable(key), "bold"), "  ", (kind, "dim"))) if key is not None else tree
    for child_key, child in children:
        _grow(branch, child, stats, child_key)


def _heading(contents: Contents) -> Text:
    manifest = contents.manifest
    rest = f"  {moment(manifest.created)} UTC, {count(manifest.attempt.world_size, 'rank')}, {manifest.library}"
    return Text.assemble((f"step {manifest.attempt.step}", "bold"), (rest, "dim"))


def _print_flat(contents: Contents, stats: Statistics | None) -> None:
    rows = [(printable(leaf.path), [text for text, _ in _description(leaf, stats)]) for leaf in contents.leaves()]
    widest = min(_MOST_PATH_COLUMNS, max((len(path) for path, _ in rows), default=0))
    for path, texts in rows:
        click.echo(f"{path:<{widest}}  {''.join(texts)}")
    _print_end(contents, stats)


def _print_end(contents: Contents, stats: Statistics | None) -> None:
    out, totals = console(), _totals(contents)
    text = f"{count(totals['leaves'], 'leaf')} and {count(totals['values'], 'value')}"
    text += f": {show_bytes(totals['replicated_bytes'])} replicated, {show_bytes(totals['per_rank_bytes'])} per rank"
    if totals["sharded_bytes"]:
        text += f", {show_bytes(totals['sharded_bytes'])} sharded"
    files = f"{count(contents.manifest.attempt.world_size, 'part file')}, {show_bytes(totals['file_bytes'])}"
    if totals["referenced_bytes"]:
        files += f", and {show_bytes(totals['referenced_bytes'])} unchanged in older files"
    out.print(f"{text}; in all {files}", style="dim")
    for line in contents.passed_over:
        out.print(printable(line), style="yellow")
    for leaf in contents.suspect:
        out.print(printable(f"suspect: {leaf}"), style="yellow")
    for problem in contents.unreadable_suspect_records:
        out.print(printable(f"may be suspect: {problem}"), style="yellow")
    for problem in _problems(contents, stats):
        out.print(printable(f"cannot be read: {problem}"), style="red")


def _description(leaf: Leaf | Value, stats: Statistics | None = None) -> list[tuple[str, str]]:
    """(text, style) pieces: what a leaf is, where it lies, and what its elements are like."""
    if isinstance(leaf, Value):
        return _value_description(leaf)
    return _leaf_description(leaf) + ([] if stats is None else _stats_description(stats.of(leaf)))


def _leaf_description(leaf: Leaf) -> list[tuple[str, str]]:
    pieces = [(printable(str(leaf.type)), "cyan"), (f"  {show_bytes(leaf.nbytes)}", "")]
    if leaf.alias_of is not None:
        return [*pieces, (f"  = {printable(leaf.alias_of)}", "magenta")]
    if leaf.per_rank is not None:
        shapes = dict.fromkeys(map(str, leaf.per_rank.values()))
        pieces.append((f"  per rank ({name_ranks(leaf.per_rank)})", "yellow"))
        if len(shapes) > 1:
            pieces.append((f"  differing: {cut(', '.join(shapes))}", "yellow"))
        return pieces
    if leaf.shards is not None:
        pieces.append((f"  {count(len(leaf.shards), 'shard')}", "green"))
    if leaf.differing:
        ranks_of = name_ranks({rank for rank, _ in leaf.differing})
        pieces.append((f"  {len(leaf.boxes_that_differ)} of them not alike on ranks {ranks_of}", "yellow"))
    ranks = {held.rank for held in leaf.holdings}
    noun = "part" if len(ranks) == 1 else "parts"
    return [*pieces, (f"  {noun} {name_ranks(ranks)}" if ranks else "  no bytes" if not leaf.nbytes else "  ?", "dim")]


def _stats_description(stats: Stats | None) -> list[tuple[str, str]]:
    if stats is None or not stats.elements:
        return []
    named = {"min": stats.min, "max": stats.max, "mean": stats.mean, "std": stats.std}
    numbers = [f"{name} {_short(number)}" for name, number in named.items() if number is not None]
    pieces = [("".join(f"  {text}" for text in numbers), "blue")]
    if stats.zeros:
        pieces.append((f"  {count(stats.zeros, 'zero')}", "blue"))
    if stats.nans:
        pieces.append((f"  {stats.nans:,} NaN", "bold red"))
    if stats.infinities:
        pieces.append((f"  {stats.infinities:,} infinite", "bold red"))
    return pieces


def _short(number: complex) -> str:
    """Integers exactly, other numbers in four digits."""
    return str(number) if isinstance(number, int) else f"{number:.4g}"


def _value_description(leaf: Value) -> list[tuple[str, str]]:
    if leaf.per_rank is None:
        return [("= ", ""), (value_text(leaf.value), "green")]
    texts = [f"{rank}: {value_text(value)}" for rank, value in list(leaf.per_rank.items())[:_MOST_RANKS]]
    more = ", ..." if len(leaf.per_rank) > _MOST_RANKS else ""
    return [("= ", ""), (", ".join(texts) + more, "green"), ("  per rank", "yellow")]
