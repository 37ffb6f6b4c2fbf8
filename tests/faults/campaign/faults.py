"""What is done to files while no job runs."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign.files import FOOTER_BYTES, Stamp, Stored, index_offset, stamp_of, take_stock
from tests.faults.campaign.plan import FileFault

_HEADER_BYTES = 4096
_TAIL_BYTES = 300


@dataclass(frozen=True, slots=True)
class Applied:
    """A fault that has found something to harm.

    Attributes:
        kind, how: row of the report, and what was done.
        detail: which file and bytes.
        hidden: the file, if only reading all of it shows that it was harmed.
    """

    kind: str
    how: str
    detail: str
    hidden: Path | None = None


def apply(fault: FileFault, base: Path, damaged: dict[Path, Stamp]) -> list[Applied]:
    """Do it; what there is to harm is only known now. Harmed files are entered in ``damaged``."""
    rng = random.Random(fault.number)
    if fault.file == "node":
        return _remove_nodes(fault, base, rng)
    stock = take_stock(base)
    if fault.file == "temporary" and not any(each.kind == "temporary" for each in stock):
        return _plant(base, stock, rng)
    applied = []
    for each in _choose(fault, stock, rng):
        others = [
            other for other in stock if other.kind == each.kind and other.path != each.path and other.path.exists()
        ]
        how = fault.action if fault.action != "swap" or others else "garbage"
        before = each.path.read_bytes()
        detail = _harm(each.path, how, others, rng)
        if each.path.exists():
            damaged[each.path] = stamp_of(each.path)
        hidden = each.path if each.session and _is_hidden(before, each.path) else None
        applied.append(Applied(f"file: {_names(fault.file)}", how, f"{each.path.relative_to(base)}: {detail}", hidden))
    return applied


def _names(file: str) -> str:
    return {
        "local": "local part",
        "partner": "partner copy",
        "parity": "parity",
        "persistent": "persistent part",
        "base": "base",
        "lineage": "deeppart.json",
        "lock": "lock file",
        "temporary": "temporary file",
        "spare": "spare file",
    }.get(file, file)


def _choose(fault: FileFault, stock: list[Stored], rng: random.Random) -> list[Stored]:
    files = [each for each in stock if each.kind == fault.file]
    steps = sorted({each.step for each in files}, reverse=True)
    if fault.age >= 0 and steps:
        step = steps[min(fault.age, len(steps) - 1)]
        files = [each for each in files if each.step == step]
    return rng.sample(files, min(fault.count, len(files)))


def _harm(path: Path, how: str, others: list[Stored], rng: random.Random) -> str:
    size = path.stat().st_size
    if how == "flip" and size:
        places = [_place(size, rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        with path.open("r+b") as file:
            for place in places:
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ rng.randint(1, 255)]))
        return f"flipped {places} of {size}"
    if how == "truncate":
        length = rng.choice((0, 1, size - 1, size // 2, rng.randrange(size + 1), max(0, size - 64)))
        with path.open("r+b") as file:
            file.truncate(max(0, length))
        return f"truncated to {length} of {size}"
    if how == "remove":
        path.unlink()
        return "removed"
    data = rng.choice(others).path.read_bytes() if how == "swap" else _garbage(size, rng)
    path.unlink()
    path.write_bytes(data)
    return "replaced by another file" if how == "swap" else f"replaced by {len(data)} bytes of garbage"


def _is_hidden(before: bytes, path: Path) -> bool:
    """Whether a part or parity file has changed in its payload alone: between its header and its index."""
    after = path.read_bytes() if path.exists() else b""
    if len(before) != len(after) or len(before) < FOOTER_BYTES:
        return False
    index = index_offset(before)
    return (
        index >= _HEADER_BYTES and before[:_HEADER_BYTES] == after[:_HEADER_BYTES] and before[index:] == after[index:]
    )


def _place(size: int, rng: random.Random) -> int:
    """A byte; headers and indexes are small, and no less important."""
    kind = rng.random()
    if kind < 0.25:
        return rng.randrange(min(size, _HEADER_BYTES))
    if kind < 0.5:
        return size - 1 - rng.randrange(min(size, _TAIL_BYTES))
    return rng.randrange(size)


def _garbage(size: int, rng: random.Random) -> bytes:
    return rng.choice((b"", bytes(size), rng.randbytes(size), rng.randbytes(rng.randrange(1, 10_000))))


def _remove_nodes(fault: FileFault, base: Path, rng: random.Random) -> list[Applied]:
    nodes = sorted((base / "nodes").glob("node*"))
    chosen = rng.sample(nodes, min(fault.count, len(nodes)))
    for node in chosen:
        shutil.rmtree(node)
    return [Applied("node directory removed", "between lives", node.name) for node in chosen]


def _plant(base: Path, stock: list[Stored], rng: random.Random) -> list[Applied]:
    """A temporary file that a killed process might have left."""
    directories = sorted({each.path.parent for each in stock if each.step >= 0})
    if not directories:
        return []
    path = rng.choice(directories) / f".part-00000-of-00002.dpp.tmp-{rng.randrange(2, 1 << 22)}"
    path.write_bytes(rng.randbytes(rng.randrange(10_000)))
    return [Applied("file: temporary file", "planted", str(path.relative_to(base)))]
