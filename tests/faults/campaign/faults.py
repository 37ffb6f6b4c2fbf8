"""What is done to files while no job runs: chosen by the fault's number and the files' names alone, then done."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign.files import FOOTER_BYTES, Stamp, Stored, index_offset, stamp_of, steady_name, take_stock
from tests.faults.campaign.records import FileFault
from tests.faults.campaign.repeating import place_of

_HEADER_BYTES = 4096
_TAIL_BYTES = 300
#: Kind of a file -> how the report calls it, if otherwise.
_NAMES = {
    "local": "local part",
    "partner": "partner copy",
    "persistent": "persistent part",
    "lineage": "deeppart.json",
    "lock": "lock file",
    "temporary": "temporary file",
    "spare": "spare file",
}


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done to one file, or one node's directory, before a life.

    Attributes:
        path: of the file, below the scenario's directory, as :func:`tests.faults.campaign.files.steady_name` gives it.
        how: "flip", "truncate", "remove", "garbage", "swap", "plant", "node" or "exchange".
        kind: row of the report.
        size: of the file before, in bytes.
        flips: (offset, what the byte is combined with by exclusive or), of "flip".
        length: of "truncate", in bytes.
        source: the file whose bytes it got, of "swap".
        content: its new bytes are drawn from this key, of "garbage" and "plant".
    """

    path: str
    how: str
    kind: str
    size: int = 0
    flips: tuple[tuple[int, int], ...] = ()
    length: int = 0
    source: str = ""
    content: str = ""

    @property
    def text(self) -> str:
        """Readable."""
        what = {
            "flip": f"flipped {[place for place, _ in self.flips]} of {self.size}",
            "truncate": f"truncated to {self.length} of {self.size}",
            "swap": f"replaced by {self.source}",
        }
        return f"{self.path}: {what.get(self.how, self.how)}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A fault that has found something to harm.

    Attributes:
        harm: what was done.
        hidden: the file, if only reading all of it shows that it was harmed.
    """

    harm: Harm
    hidden: Path | None = None


def choose(fault: FileFault, base: Path) -> list[Harm]:
    """What a fault comes to, with what is on storage now."""
    nodes = [path.name for path in (base / "nodes").glob("node*")]
    if fault.file == "node":
        names = _drawn(nodes, fault.number, fault.count)
        return [Harm(f"nodes/{name}", "node", "node directory removed") for name in names]
    if fault.file == "nodes":
        names = _drawn(nodes, fault.number, 2)
        if len(names) < 2:
            return []
        return [Harm(f"nodes/{names[0]}", "exchange", "nodes exchanged", source=f"nodes/{names[1]}")]
    stock = {steady_name(each.path, base): each for each in take_stock(base)}
    if fault.file == "temporary" and not any(each.kind == "temporary" for each in stock.values()):
        return _planted(stock, fault)
    files = {name: each for name, each in stock.items() if each.kind == fault.file}
    steps = sorted({each.step for each in files.values()}, reverse=True)
    if fault.age >= 0 and steps:
        step = steps[min(fault.age, len(steps) - 1)]
        files = {name: each for name, each in files.items() if each.step == step}
    return [
        _harm(name, stock, fault.action, random.Random(f"{fault.number}:{name}"))
        for name in _drawn(files, fault.number, fault.count)
    ]


def perform(harm: list[Harm], base: Path, damaged: dict[Path, Stamp]) -> list[Applied]:
    """Do what was chosen; ``damaged`` gets what came of it."""
    applied = []
    known = {stored.path for stored in take_stock(base) if stored.session}
    for each in harm:
        found = _paths(base, each)
        if found is None:
            continue
        path, source = found
        before, stamp = (path.read_bytes(), stamp_of(path)) if path.is_file() else (b"", None)
        _do(path, source, each, base)
        # The bytes of another copy of the same file are no harm.
        if stamp and path.exists() and (stamp_of(path)[1:] != stamp[1:] or stamp in damaged.values()):
            damaged[path] = stamp_of(path)
        applied.append(Applied(each, path if path in known and _is_hidden(before, path) else None))
    return applied


def _drawn(names: Iterable[str], number: int, count: int) -> list[str]:
    """So many of the names: one more or less there does not change which of the others it is."""
    return sorted(names, key=lambda name: place_of(number, name))[:count]


def _harm(name: str, stock: dict[str, Stored], action: str, rng: random.Random) -> Harm:
    """What is done to one file."""
    kind, size = stock[name].kind, stock[name].stamp[2]
    row = f"file: {_NAMES.get(kind, kind)}"
    if action == "flip" and size:
        places = [_place(size, rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        flips = tuple((place, rng.randint(1, 255)) for place in dict.fromkeys(places))
        return Harm(name, "flip", row, size, flips=flips)
    if action == "truncate":
        length = rng.choice((0, 1, size - 1, size // 2, rng.randrange(size + 1), max(0, size - 64)))
        return Harm(name, "truncate", row, size, length=max(0, length))
    if action == "remove":
        return Harm(name, "remove", row, size)
    others = [other for other, each in stock.items() if each.kind == kind and other != name]
    if action == "swap" and others:
        return Harm(name, "swap", row, size, source=_drawn(others, rng.randrange(1 << 30), 1)[0])
    content = rng.choice(("", f"zeros {size}", f"noise {rng.random()} {size}", f"noise 0 {rng.randrange(1, 10_000)}"))
    return Harm(name, "garbage", row, size, content=content)


def _do(path: Path, source: Path | None, harm: Harm, base: Path) -> None:
    if harm.how == "node":
        shutil.rmtree(path)
    elif harm.how == "exchange" and source is not None:
        for old, new in ((path, base / "x"), (source, path), (base / "x", source)):
            old.rename(new)
    elif harm.how == "plant":
        path.write_bytes(random.Random(harm.content).randbytes(harm.size))
    elif harm.how == "flip":
        with path.open("r+b") as file:
            for place, mask in harm.flips:
                file.seek(place)
                byte = file.read(1)
                if byte:
                    file.seek(place)
                    file.write(bytes([byte[0] ^ mask]))
    elif harm.how == "truncate":
        with path.open("r+b") as file:
            file.truncate(harm.length)
    else:
        data = _garbage(harm.content) if source is None else source.read_bytes()
        path.unlink()
        if harm.how != "remove":
            path.write_bytes(data)


def _garbage(content: str) -> bytes:
    if not content:
        return b""
    length = int(content.rpartition(" ")[2])
    return bytes(length) if content.startswith("zeros") else random.Random(content).randbytes(length)


def _paths(base: Path, harm: Harm) -> tuple[Path, Path | None] | None:
    """The file that is meant, and the one whose bytes it gets; None where one of them is not there."""
    there = {steady_name(path, base): path for folder in ("nodes", "persistent") for path in (base / folder).rglob("*")}
    if harm.how == "plant":
        return (base / harm.path, None) if (base / harm.path).parent.is_dir() else None
    path, source = there.get(harm.path), there.get(harm.source)
    return None if path is None or (harm.source and source is None) else (path, source)


def _is_hidden(before: bytes, path: Path) -> bool:
    """Whether a part or parity file has changed in its payload alone: between its header and its index."""
    after = path.read_bytes() if path.exists() else b""
    if before == after or len(before) != len(after) or len(before) < FOOTER_BYTES:
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


def _planted(stock: dict[str, Stored], fault: FileFault) -> list[Harm]:
    """A temporary file that a killed process might have left."""
    directories = {name.rpartition("/")[0] for name, each in stock.items() if each.step >= 0}
    rng = random.Random(fault.number)
    process, size = rng.randrange(2, 1 << 22), rng.randrange(10_000)
    names = [
        f"{directory}/.part-00000-of-00002.dpp.tmp-{process}" for directory in _drawn(directories, fault.number, 1)
    ]
    return [Harm(name, "plant", "file: temporary file", size, content=f"{fault.number}") for name in names]
