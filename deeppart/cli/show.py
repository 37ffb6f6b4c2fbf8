"""``deeppart show``: the tree of leaves in one checkpoint."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from deeppart.cli.commands import GOOD, NOT_GOOD, print_json
from deeppart.cli.ls import suspect_document
from deeppart.cli.options import directory_argument, sign_key_option
from deeppart.cli.output import console, count, moment, printable, unchecked_line
from deeppart.model.units import show_bytes
from deeppart.offline.inspect.contents import read_contents
from deeppart.offline.inspect.described import Container, Contents, Leaf, Node, Value
from deeppart.offline.inspect.listing import name_ranks
from deeppart.part import Signing
from deeppart.state.tree.naming import KIND_NAMES
from deeppart.state.tree.runs import describe_leaf_value, run_kind
from deeppart.state.tree.values import describe_value

#: Longer texts are cut where people read them; --json has all of them.
_MOST_CHARACTERS = 60
_MOST_RANKS = 4
#: Columns that a table of paths is aligned to; a longer path pushes its own line out, and not all others.
_MOST_PATH_COLUMNS = 160
#: JSON readers keep integers of so many bits; Python refuses to write out those of thousands of digits.
_MOST_BITS = 64


@click.command(short_help="Show the content of a checkpoint.")
@directory_argument
@click.argument("keys", metavar="[KEYS]...", nargs=-1)
@click.option("--step", type=click.IntRange(min=0), help="Which step; the newest with a sound manifest if left out.")
@sign_key_option
@click.option("--flat", is_flag=True, help="One line per leaf instead of a tree.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(
    directory: Path, keys: tuple[str, ...], step: int | None, signing: Signing | None, flat: bool, as_json: bool
) -> int:
    """Show the content of a checkpoint in DIR: paths, dtypes, shapes, bytes, and the parts with these bytes.

    KEYS are globs over paths, as for deeppart.load: model '*.bias'. Reads the manifest and indexes, no chunk. Exit
    code 1 if a part's index cannot be read, or there is nothing to show.
    """
    contents = read_contents(directory, step, keys, signing)
    if as_json:
        print_json({**_document(directory, contents), "signature_checked": signing is not None})
    elif flat:
        _print_flat(contents)
    else:
        _print_tree(contents)
    if signing is None and contents.manifest.signed and not as_json:
        console().print(unchecked_line(contents.manifest.attempt.step), style="yellow", soft_wrap=True)
    return NOT_GOOD if contents.problems else GOOD


# --- JSON -----------------------------------------------------------------------------------------------------------


def _document(directory: Path, contents: Contents) -> dict[str, Any]:
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
            _leaf_document(leaf) if isinstance(leaf, Leaf) else _value_document(leaf) for leaf in contents.leaves()
        ],
        "unreadable_suspect_records": list(contents.unreadable_suspect_records),
        "passed_over": list(contents.passed_over),
        "problems": list(contents.problems),
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


def _leaf_document(leaf: Leaf) -> dict[str, Any]:
    kinds = leaf.per_rank
    return {
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


def _value_document(value: Value) -> dict[str, Any]:
    own = value.per_rank
    document = {"path": value.path, "kind": "value", "per_rank": own is not None}
    if own is None:
        return {**document, "type": type(value.value).__name__, "value": _json_value(value.value), "ranks": None}
    ranks = [{"rank": rank, "type": type(each).__name__, "value": _json_value(each)} for rank, each in own.items()]
    return {**document, "type": None, "value": None, "ranks": ranks}


def _json_value(value: Any) -> Any:
    """The value if JSON has it exactly, else its Python notation; integers beyond 64 bits in hexadecimal.

    A dict is a list of its entries, [key, value].
    """
    if type(value) is int:
        return value if value.bit_length() < _MOST_BITS else hex(value)
    if value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)) and run_kind(value) is not None:
        return [_json_value(item) for item in value]
    if run_kind(value) is not None:
        return [[_json_value(key), _json_value(item)] for key, item in value.items()]
    return describe_value(value) if type(value) is io.BytesIO else repr(value)


# --- for people -----------------------------------------------------------------------------------------------------


def _print_tree(contents: Contents) -> None:
    out = console()
    tree = Tree(_heading(contents), guide_style="dim")
    _grow(tree, contents.tree)
    out.print(tree, soft_wrap=not out.is_terminal)
    _print_end(contents)


def _grow(tree: Tree, node: Node, key: str | None = None) -> None:
    if not isinstance(node, Container):
        tree.add(Text.assemble((printable(key or node.path), "bold"), "  ", *_description(node)))
        return
    if node.kind == "object":  # its state_dict() has no path of its own
        inner, name = node.children[0][1], node.name
    else:
        inner, name = node, " ".join(filter(None, (KIND_NAMES.get(node.kind, node.kind), node.name)))
    children = inner.children if isinstance(inner, Container) else ((None, inner),)
    kind = f"{printable(name)} of {len(children)}"
    branch = tree.add(Text.assemble((printable(key), "bold"), "  ", (kind, "dim"))) if key is not None else tree
    for child_key, child in children:
        _grow(branch, child, child_key)


def _heading(contents: Contents) -> Text:
    manifest = contents.manifest
    rest = f"  {moment(manifest.created)} UTC, {count(manifest.attempt.world_size, 'rank')}, {manifest.library}"
    return Text.assemble((f"step {manifest.attempt.step}", "bold"), (rest, "dim"))


def _print_flat(contents: Contents) -> None:
    rows = [(printable(leaf.path), [text for text, _ in _description(leaf)]) for leaf in contents.leaves()]
    widest = min(_MOST_PATH_COLUMNS, max((len(path) for path, _ in rows), default=0))
    for path, texts in rows:
        click.echo(f"{path:<{widest}}  {''.join(texts)}")
    _print_end(contents)


def _print_end(contents: Contents) -> None:
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
    for problem in contents.problems:
        out.print(printable(f"cannot be read: {problem}"), style="red")


def _description(leaf: Leaf | Value) -> list[tuple[str, str]]:
    """(text, style) pieces: what a leaf is and where it lies."""
    if isinstance(leaf, Value):
        return _value_description(leaf)
    pieces = [(printable(str(leaf.type)), "cyan"), (f"  {show_bytes(leaf.nbytes)}", "")]
    if leaf.alias_of is not None:
        return [*pieces, (f"  = {printable(leaf.alias_of)}", "magenta")]
    if leaf.per_rank is not None:
        shapes = dict.fromkeys(map(str, leaf.per_rank.values()))
        pieces.append((f"  per rank ({name_ranks(leaf.per_rank)})", "yellow"))
        if len(shapes) > 1:
            pieces.append((f"  differing: {_cut(', '.join(shapes))}", "yellow"))
        return pieces
    if leaf.shards is not None:
        pieces.append((f"  {count(len(leaf.shards), 'shard')}", "green"))
    if leaf.differing:
        ranks_of = name_ranks({rank for rank, _ in leaf.differing})
        pieces.append((f"  {len(leaf.boxes_that_differ)} of them not alike on ranks {ranks_of}", "yellow"))
    ranks = {held.rank for held in leaf.holdings}
    noun = "part" if len(ranks) == 1 else "parts"
    return [*pieces, (f"  {noun} {name_ranks(ranks)}" if ranks else "  no bytes" if not leaf.nbytes else "  ?", "dim")]


def _value_description(leaf: Value) -> list[tuple[str, str]]:
    if leaf.per_rank is None:
        return [("= ", ""), (_text(leaf.value), "green")]
    texts = [f"{rank}: {_text(value)}" for rank, value in list(leaf.per_rank.items())[:_MOST_RANKS]]
    more = ", ..." if len(leaf.per_rank) > _MOST_RANKS else ""
    return [("= ", ""), (", ".join(texts) + more, "green"), ("  per rank", "yellow")]


def _text(value: Any) -> str:
    if run_kind(value) is not None:
        return _cut(describe_leaf_value(value))
    if type(value) is int and value.bit_length() >= _MOST_BITS:
        return _cut(hex(value))
    return _cut(describe_value(value) if type(value) is io.BytesIO else repr(value))


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
