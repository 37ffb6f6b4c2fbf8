"""The content of a checkpoint as ``deeppart show`` prints it: a tree, a line for each leaf, or JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json
from deeppart.cli.ls import suspect_document
from deeppart.cli.output import console, count, moment, unchecked_line
from deeppart.cli.progress import progress_bar
from deeppart.cli.text import printable
from deeppart.cli.values import cut, json_value, value_text
from deeppart.model.units import show_bytes
from deeppart.offline.inspect.contents import read_contents
from deeppart.offline.inspect.described import Container, Contents, Leaf, Node, Value
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
    manifest = contents.manifest
    return {
        "directory": str(directory),
        "step": manifest.attempt.step,
        "created": manifest.created,
        "library": manifest.library,
        "ranks": manifest.attempt.world_size,
        "signed": manifest.signed,
        "suspect": [suspect_document(leaf) for leaf in contents.suspect],
        "totals": _totals(contents),
        "leaves": [
            _leaf_document(leaf, stats) if isinstance(leaf, Leaf) else _value_document(leaf)
            for leaf in contents.leaves()
        ],
        "unreadable_suspect_records": list(contents.unreadable_suspect_records),
        "passed_over": list(contents.passed_over),
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


def _leaf_document(leaf: Leaf, stats: Statistics | None) -> dict[str, Any]:
    kinds = leaf.per_rank
    document: dict[str, Any] = {
        "path": leaf.path,
        "kind": "tensor" if leaf.type.kind == "torch" else "array",
        "dtype": leaf.type.dtype,
        "shape": list(leaf.type.shape),
        "bytes": leaf.nbytes,
        "stored_bytes": leaf.stored_bytes,
        "per_rank": kinds is not None,
        "compared_at_step": leaf.compared,
        "alias_of": leaf.alias_of,
        "shards": None if leaf.shards is None else [{"offset": box.offset, "sizes": box.sizes} for box in leaf.shards],
        "differing": [{"rank": rank, "offset": box.offset, "sizes": box.sizes} for rank, box in leaf.differing],
        "parts": [{"part": held.rank, "start": held.start, "bytes": held.length} for held in leaf.holdings],
        "ranks": None
        if kinds is None
        else [{"rank": rank, "dtype": kind.dtype, "shape": list(kind.shape)} for rank, kind in kinds.items()],
    }
    if stats is None:
        return document
    for entry in document["ranks"] or ():
        entry["stats"] = _stats_document(stats.of(leaf, entry["rank"]))
    return {**document, "stats": _stats_document(stats.of(leaf))}


def _stats_document(stats: Stats | None) -> dict[str, Any] | None:
    return None if stats is None else {key: json_value(item) for key, item in asdict(stats).items()}


def _value_document(value: Value) -> dict[str, Any]:
    own = value.per_rank
    document = {"path": value.path, "kind": "value", "per_rank": own is not None}
    if own is None:
        return {**document, "type": type(value.value).__name__, "value": json_value(value.value), "ranks": None}
    ranks = [{"rank": rank, "type": type(each).__name__, "value": json_value(each)} for rank, each in own.items()]
    return {**document, "type": None, "value": None, "ranks": ranks}


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
