"""``deeppart show``: the content of a checkpoint as a tree, or with a line for each leaf."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from deeppart import offline
from deeppart.cli.commands import printable
from deeppart.cli.options import directory_argument, sign_key_option, step_option
from deeppart.cli.output import Shown, command, count, counts, cut, line, moment, progress, unchecked_line, value_text
from deeppart.model import show_bytes
from deeppart.part import Signing

_MOST_RANKS = 4
#: Most columns to which paths are padded: a longer path shifts only its own line.
_MOST_PATH_COLUMNS = 160


def _tree_lines(contents: offline.Contents) -> Iterator[Any]:
    tree = Tree(_heading(contents), guide_style="dim")
    branches = [tree]  # the current branch at each depth
    for row in contents.rows:
        del branches[max(1, len(row.keys)) :]
        if not isinstance(row, offline.Container):
            branches[-1].add(Text.assemble((_key(row.keys), "bold"), "  ", *_description(row)))
        elif row.keys:
            kind = f"{printable(row.text)} of {row.size}"
            branches.append(branches[-1].add(Text.assemble((_key(row.keys), "bold"), "  ", (kind, "dim"))))
    yield tree
    yield from _end_lines(contents)


def _key(keys: tuple[Any, ...]) -> str:
    """The last key of a path."""
    from deeppart.state.paths import readable

    return "''" if keys[-1:] == ("",) else printable(readable(keys[-1:]))


def _heading(contents: offline.Contents) -> Text:
    manifest = contents.manifest
    rest = f"  {moment(manifest.created)} UTC, {count(manifest.attempt.world_size, 'rank')}, {manifest.library}"
    return Text.assemble((f"step {manifest.attempt.step}", "bold"), (rest, "dim"))


def _flat_lines(contents: offline.Contents) -> Iterator[Any]:
    rows = [(printable(leaf.path), [text for text, _ in _description(leaf)]) for leaf in contents.leaves]
    widest = min(_MOST_PATH_COLUMNS, max((len(path) for path, _ in rows), default=0))
    for path, texts in rows:
        yield Text(f"{path:<{widest}}  {''.join(texts)}")
    yield from _end_lines(contents)


def _end_lines(contents: offline.Contents) -> Iterator[Any]:
    totals = contents.totals
    text = counts(totals)
    text += f": {show_bytes(totals.replicated_bytes)} replicated, {show_bytes(totals.per_rank_bytes)} per rank"
    if totals.sharded_bytes:
        text += f", {show_bytes(totals.sharded_bytes)} sharded"
    files = f"{count(contents.manifest.attempt.world_size, 'part file')}, {show_bytes(totals.file_bytes)}"
    if totals.referenced_bytes:
        files += f", and {show_bytes(totals.referenced_bytes)} unchanged in earlier steps"
    yield line(f"{text}; in all {files}", "dim")
    for each in contents.passed_over:
        yield line(each, "yellow")
    for leaf in contents.suspect:
        yield line(f"suspect: {leaf}", "yellow")
    for problem in contents.unreadable_suspect_records:
        yield line(f"may be suspect: {problem}", "yellow")
    for problem in contents.problems:
        yield line(f"cannot be read: {problem}", "red")
    if contents.manifest.signed and not contents.signature_checked:
        yield line(unchecked_line(contents.manifest.attempt.step), "yellow")


def _description(leaf: offline.Leaf | offline.Value) -> list[tuple[str, str]]:
    """(text, style) pieces: the type, location and statistics of a leaf."""
    if isinstance(leaf, offline.Value):
        return _value_description(leaf)
    return _leaf_description(leaf) + _stats_description(leaf.stats)


def _leaf_description(leaf: offline.Leaf) -> list[tuple[str, str]]:
    pieces = [(printable(str(leaf.type)), "cyan"), (f"  {show_bytes(leaf.nbytes)}", "")]
    if leaf.alias_of is not None:
        return [*pieces, (f"  = {printable(leaf.alias_of)}", "magenta")]
    if leaf.per_rank is not None:
        shapes = dict.fromkeys(map(str, leaf.per_rank.values()))
        pieces.append((f"  per rank ({offline.name_ranks(leaf.per_rank)})", "yellow"))
        if len(shapes) > 1:
            pieces.append((f"  differing: {cut(', '.join(shapes))}", "yellow"))
        return pieces
    if leaf.shards is not None:
        pieces.append((f"  {count(len(leaf.shards), 'shard')}", "green"))
    if leaf.differing:
        ranks_of = offline.name_ranks({rank for rank, _ in leaf.differing})
        pieces.append((f"  {len(leaf.boxes_that_differ)} of them not alike on ranks {ranks_of}", "yellow"))
    ranks = {held.rank for held in leaf.holdings}
    noun = "part" if len(ranks) == 1 else "parts"
    return [
        *pieces,
        (f"  {noun} {offline.name_ranks(ranks)}" if ranks else "  no bytes" if not leaf.nbytes else "  ?", "dim"),
    ]


def _stats_description(stats: Any) -> list[tuple[str, str]]:
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
    """Integers exactly, other numbers to four digits."""
    return str(number) if isinstance(number, int) else f"{number:.4g}"


def _value_description(leaf: offline.Value) -> list[tuple[str, str]]:
    form = [(f"  {printable(leaf.form)}", "dim")] if leaf.form else []
    if leaf.per_rank is None:
        return [("= ", ""), (value_text(leaf.value), "green"), *form]
    texts = [f"{rank}: {value_text(value)}" for rank, value in list(leaf.per_rank.items())[:_MOST_RANKS]]
    more = ", ..." if len(leaf.per_rank) > _MOST_RANKS else ""
    return [("= ", ""), (", ".join(texts) + more, "green"), ("  per rank", "yellow"), *form]


@command("Show the content of a checkpoint.")
@directory_argument
@click.argument("keys", metavar="[KEYS]...", nargs=-1)
@step_option("Which step; the newest with a sound manifest if left out.")
@sign_key_option
@click.option("--stats", is_flag=True, help="Read the elements too: smallest, largest, mean, deviation, zeros, NaNs.")
@click.option("--flat", is_flag=True, help="One line per leaf instead of a tree.")
def show(
    directory: Path, keys: tuple[str, ...], step: int | None, signing: Signing | None, stats: bool, flat: bool
) -> Shown:
    """Show the content of a checkpoint in DIR: paths, dtypes, shapes, bytes, and the parts with these bytes.

    KEYS are globs over paths, as for deeppart.load: model '*.bias'. Reads the manifest and indexes, and no chunk
    without --stats. Exit code 1 if something cannot be read, or there is nothing to show.
    """
    with progress() if stats else nullcontext() as bar:
        contents = offline.read_contents(directory, step, keys, signing, bar)
    return Shown(contents, _flat_lines if flat else _tree_lines)
