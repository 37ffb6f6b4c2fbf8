"""What lies on storage, read by the format's document alone: which file belongs to which attempt, and which are sound.

Nothing here uses the library, so that it cannot share its mistakes. A file under its final name counts as sound until
the campaign damages it; one that the library has written anew since is sound again.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

#: Inode, xxh3-64 of the content, and length: changes when a file is written anew. The time of its last change would not
#: do: it also passes when MPI takes hold of a mapping of the file to send it.
Stamp = tuple[int, int, int]
_PART = struct.Struct("<8sII16s16sQQII")
_PARITY = struct.Struct("<8sII16s16sQQIIII")
_INDEX = struct.Struct("<8sQQ8s32x")
FOOTER_BYTES = 64
_STEP = re.compile(r"step-(\d{12,})-[0-9a-f]{32}-\d{6,}")
_LINEAGE = re.compile(r"[0-9a-f]{32}")
_PROCESS = re.compile(r"(\.tmp-|\.probe-)\d+")
NODE_KINDS = ("local", "partner", "parity")


@dataclass(frozen=True, slots=True)
class Stored:
    """A file.

    Attributes:
        path, kind: where, and one of records.FILES.
        node: whose storage; -1 on the persistent level.
        lineage: of the folder it is in, on a node.
        step: of the folder it is in; -1 for none.
        stamp: tells whether it has been written anew.
        written_ns: when its content changed last.
        session, part, world: what its header says; "" where it has none or is not sound.
        bases: of a part: directories, beside its own, in which the parts lie that it refers to.
        index_digest: of a part: what its footer says. A part can be encoded in two ways, on nodes and persistently.
        members, tolerate, place, set_name: of a parity file: parts of the set's members, None for those without.
        member_digests: of a parity file: the index digests of these parts' files; parity is of no use with others.
    """

    path: Path
    kind: str
    node: int
    lineage: str
    step: int
    stamp: Stamp
    written_ns: int = 0
    session: str = ""
    part: int = -1
    world: int = 0
    bases: tuple[str, ...] = ()
    index_digest: str = ""
    members: tuple[int | None, ...] = ()
    member_digests: tuple[str, ...] = ()
    tolerate: int = 0
    place: int = -1
    set_name: str = ""


def steady_name(path: Path, base: Path) -> str:
    """A file's path below a scenario's directory, the same whenever the scenario is played.

    Temporary files bear the number of a process.
    """
    return _PROCESS.sub(r"\1", path.relative_to(base).as_posix())


def stamp_of(path: Path) -> Stamp:
    """The stamp that a file has now."""
    content = path.read_bytes()
    return path.stat().st_ino, xxhash.xxh3_64_intdigest(content), len(content)


def take_stock(base: Path) -> list[Stored]:
    """Every file of a scenario, sound or not; headers are read as they are."""
    found = []
    for path in sorted((base / "nodes").rglob("*")) + sorted((base / "persistent").rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.append(_look_at(path, base))
    return found


def sound(files: Iterable[Stored], damaged: dict[Path, Stamp], swapped: Collection[Stamp]) -> list[Stored]:
    """Those that nobody has harmed since they were written, under whichever name; parts only with all their bases.

    Args:
        swapped: of the damaged ones, those that got the bytes of a sound file: damaged where these do not belong, not
            where they do, or where a restore has put the file since.
    """
    harmed = {stamp: path for path, stamp in damaged.items()}

    def is_good(each: Stored) -> bool:
        at = harmed.get(each.stamp)
        if at is None or not each.session:
            return bool(each.session)
        return each.stamp in swapped and (each.path != at or _is_in_place(each))

    good = [each for each in files if is_good(each)]
    there = {each.path for each in good}
    return [
        each for each in good if all(each.path.parent.with_name(base) / each.path.name in there for base in each.bases)
    ]


def _is_in_place(file: Stored) -> bool:
    """Whether a part has the name, and lies in the folder, of the part that its header says."""
    name = f"part-{file.part:05d}-of-{file.world:05d}.dpp"
    return file.path.name == name and file.path.parent.name.startswith(f"step-{file.step:012d}-{file.session}-")


def index_offset(content: bytes) -> int:
    """Where the index of a part or parity file begins, by its footer."""
    offset: int = struct.unpack("<8xQ", content[-FOOTER_BYTES:][:16])[0]
    return offset


def read_lineage(persistent: Path) -> str | None:
    """The directory's lineage; "" where there is no record, None where it cannot be read."""
    try:
        lineage = json.loads((persistent / "deeppart.json").read_bytes())["lineage"]
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return lineage if isinstance(lineage, str) and _LINEAGE.fullmatch(lineage) else None


def _look_at(path: Path, base: Path) -> Stored:
    places = path.relative_to(base).parts
    step = next((int(match[1]) for place in places if (match := _STEP.fullmatch(place))), -1)
    on_node = places[0] == "nodes"
    node = int(places[1][4:]) if on_node else -1
    lineage = places[2] if on_node and len(places) > 3 else ""
    kind = _kind(path.name, places, on_node)
    if kind == "persistent" and not (path.parent / "manifest").exists():
        kind = "base"  # all that is left of its step, unless that was never committed
    plain = Stored(path, kind, node, lineage, step, stamp_of(path), path.stat().st_mtime_ns)
    try:
        if kind == "manifest":
            return _manifest(plain)
        if kind == "parity":
            return _parity(plain)
        if kind in ("local", "partner", "persistent", "base"):
            with path.open("rb") as file:
                return _read_part(plain, file)
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        pass  # damaged: it has no session
    return plain


def _kind(name: str, places: tuple[str, ...], on_node: bool) -> str:
    if any(place.startswith(".spare") for place in places):
        return "spare"
    if ".tmp-" in name:
        return "temporary"
    if name.startswith("parity-"):
        return "parity"
    if name.startswith("part-"):
        return "partner" if "partner" in places else "local" if on_node else "persistent"
    return {"manifest": "manifest", "deeppart.json": "lineage", ".deeppart.lock": "lock"}.get(name, "other")


def _read_part(plain: Stored, file: BinaryIO) -> Stored:
    _, _, _, _, session, _, step, rank, world = _PART.unpack(file.read(_PART.size))
    index = _index(file, 1 << 26)
    file.seek(-FOOTER_BYTES + 32, 2)
    digest = file.read(16).hex()
    chunks, spans = struct.unpack_from("<8xQQ", index)
    (count,) = struct.unpack_from("<48xI", index)
    if count > 64:
        raise ValueError("too many bases")
    at = 64 + 80 * chunks + 40 * spans
    rows = [struct.unpack_from("<24xQQ", index, at + 40 * number) for number in range(count)]
    bases = tuple(f"step-{base:012d}-{session.hex()}-{sequence:06d}" for base, sequence in rows)
    return _filled(plain, session.hex(), step, world, part=rank, bases=bases, index_digest=digest)


def _index(file: BinaryIO, most_bytes: int) -> bytes:
    """The index of a part or parity file, where its footer says that it is."""
    end = file.seek(-FOOTER_BYTES, 2)
    offset, length = struct.unpack("<8xQQ", file.read(24))
    if length > most_bytes or offset > end:
        raise ValueError("no index")
    file.seek(offset)
    return file.read(length)


def _parity(plain: Stored) -> Stored:
    with plain.path.open("rb") as file:
        _, _, _, _, session, _, step, world, _, tolerate, place = _PARITY.unpack(file.read(_PARITY.size))
        index = _index(file, 1 << 24)
    _, members_length, _, _ = _INDEX.unpack_from(index)
    members = json.loads(index[_INDEX.size : _INDEX.size + members_length])
    parts = tuple(member["part"] for member in members)
    fields = {"members": parts, "tolerate": tolerate, "place": place, "set_name": plain.path.name.split("-")[1]}
    fields["member_digests"] = tuple(member["index_digest"] for member in members)
    return _filled(plain, session.hex(), step, world, **fields)


def _manifest(plain: Stored) -> Stored:
    attempt = json.loads(plain.path.read_bytes().partition(b"\n")[2])["attempt"]
    return _filled(plain, attempt["session"], attempt["step"], attempt["world_size"])


def _filled(plain: Stored, session: str, step: int, world: int, **fields: object) -> Stored:
    if step != plain.step:
        raise ValueError("in the wrong place")
    values = {name: getattr(plain, name) for name in Stored.__slots__}
    return Stored(**(values | {"session": session, "world": world} | fields))
