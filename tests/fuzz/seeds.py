"""What cases are made of: small checkpoints of odd states, and the golden files. The same bytes on every day."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import uuid
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import deeppart
from deeppart import _times
from deeppart.elastic.goodput import Bounds, GradientNoise
from deeppart.elastic.profile import Profile, TimedSteps
from deeppart.model import Box
from deeppart.storage import lineage, owner
from tests.fuzz.images import PartImage, reforge
from tests.golden import make
from tests.tensor_kinds import KINDS
from tests.unit import cli_support
from tests.unit.sharded_states import piece

Point = namedtuple("Point", ["x", "y"])


#: The seed whose files are signed, and read with the key.
SIGNED = "signed"


KEY = bytes(range(40))


#: Path in the directory of a case -> bytes.
Files = dict[str, bytes]


@dataclass(frozen=True)
class Seed:
    """A directory of files.

    Attributes:
        files: its contents.
        live: a state to restore into, without one byte of what was saved; None where there is nothing to restore.
    """

    files: Files
    live: Callable[[], Any] | None = None


def _odd(fill: float) -> dict[Any, Any]:
    torch.manual_seed(int(fill * 10))
    weight = torch.full((6, 5), fill)
    numbers = np.arange(24, dtype=np.int16).reshape(4, 6) * int(fill)
    return {
        "model": {"weight": weight, "row": weight[1], "twin": weight, "wide": weight.t(), "half": weight.half()},
        "numbers": numbers,
        "corner": numbers[1:3, 2:4],
        "texts": np.array(["ab", f"c{fill}"]),
        "times": np.array([int(fill), 5], dtype="M8[ns]"),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(fill, dtype=torch.bfloat16),
        "expanded": torch.full((1, 4), fill).expand(3, 4) if fill else torch.zeros(3, 4),
        "values": [fill, int(fill), -0.0, float("inf"), 1 << 70, f"text {fill}", b"\0\xff", None, True, 1j * fill],
        "more": (torch.float16, torch.device("cpu"), torch.Size([2, 3]), np.float32(fill), "\ud800", np.str_("x")),
        "point": Point(torch.full((3,), fill), {"deep": [[(fill,)]]}),
        "run": [int(fill) + number for number in range(20)],
        "table": {f"word {number}": fill * number for number in range(260)},
        "rows": [{"a": fill, "b": [number, f"text {number}"]} if number % 9 else (None,) for number in range(260)],
        "mixed": ("a", fill, None, b"x", 1 << 70, np.int16(fill), torch.float16, True, "\ud800"),
        7: "seven",
        (1, "two"): Counter(a=int(fill)),
        None: OrderedDict(b=fill, a=torch.full((2,), fill)),
    }


def _module(fill: float) -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * fill)
    model(torch.full((5, 3), fill) + torch.arange(15.0).reshape(5, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": int(fill)}


def _large(fill: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(int(fill))
    return {
        "weights": torch.randn(3000, generator=generator) * 0.1,
        "moments": torch.rand(2000, generator=generator).double() * fill,
        "half": torch.randn(1500, generator=generator).bfloat16(),
        "zeros": torch.zeros(20_000) + 0.0 * fill,
        "ids": torch.arange(1000) * int(fill),
        "bytes": torch.arange(3000, dtype=torch.uint8),
    }


def _kinds(fill: float) -> dict[str, Any]:
    """Tensors that are made of others, but for those that a restore replaces: a live state is to be told apart."""
    seed = int(fill)
    names = ("coo", "coo, coalesced", "csr", "bsr", "quint8", "channels", "subclass of subclasses")
    made: dict[str, Any] = {name: KINDS[name](2 * seed + 1) for name in names}
    other = KINDS["coo"](2 * seed + 5)
    return {**made, "twice": other, "values": other._values(), "j": [KINDS["jagged"](2 * seed + 1), jagged_pair(seed)]}


def jagged_pair(seed: int) -> dict[str, Any]:
    """Two of one shape."""
    one = KINDS["jagged"](2 * seed + 3)
    return {"a": one, "b": one * 2}


def _shards(fill: float) -> dict[str, Any]:
    """Tensors that are divided into boxes, in a grid or in none; one of them has two names."""
    whole = torch.full((4, 6), fill) + torch.arange(24.0).view(4, 6) * (fill != 0)
    grid = _in_boxes(whole, [Box((0, 0), (2, 6)), Box((2, 0), (2, 6))])
    odd = [Box((0, 0), (4, 2)), Box((0, 2), (3, 4)), Box((3, 2), (1, 4))]
    return {"grid": grid, "tied": grid, "odd": _in_boxes(whole.double(), odd), "plain": torch.full((5,), fill)}


def _in_boxes(whole: torch.Tensor, boxes: list[Box]) -> Any:
    made = piece(whole, Box.whole(tuple(whole.shape)))
    made.global_offsets = made.local_offsets = [each.offset for each in boxes]
    made.local_sizes = [each.sizes for each in boxes]
    return made


def _save(root: Path, *states: Any, **options: Any) -> None:
    # Status files say how long things took: no two runs have the same bytes.
    config = deeppart.Config(persistent_dir=str(root), keep={"persistent": 0}, status="none", **options)
    with deeppart.Checkpointer(config) as checkpointer:
        for step, state in enumerate(states, start=1):
            checkpointer.checkpoint(state, step=step).wait("persistent", timeout=600)


def tie(leaf: list[Any], here: list[Any]) -> tuple[Callable[[PartImage], None], Callable[[dict[str, Any]], None]]:
    """Leaf 4 shares the memory of leaf 2, of which every rank has its own, as numpy arrays."""

    def document(part: PartImage) -> None:
        part.meta["leaves"] |= {"2": ["numpy", "|u1", [16]], "4": here}

    def structure(document: dict[str, Any]) -> None:
        document["leaves"][2] = ["numpy", "|u1", [16]]
        document["leaves"].append(leaf)
        document["per_rank"].append(4)
        document["tree"][2].append("tied")
        document["tree"][3].append(4)

    return document, structure


def _with_ties(root: Path, ranks: int) -> None:
    cli_support.forge(root, 4, ranks)
    reforge(root, *tie(["numpy", "|u1", [4], [2, 8, [2]]], ["numpy", "|u1", [4]]))


def _of_ranks() -> dict[str, Any]:
    rng = np.zeros(16, dtype=np.uint8)
    return {
        "a": torch.zeros(900),
        "b": torch.zeros(100, dtype=torch.int64),
        "rng": rng,
        "position": 0,
        "tied": rng[8:15:2],
    }


def _golden() -> Files:
    step, later = (f"step-{each.step:012d}-{each.session}-{each.sequence:06d}" for each in (make.ATTEMPT, make.LATER))
    files = {f"ckpt/{later}/{path.name}": path.read_bytes() for path in make.LATER_FILES.iterdir()}
    local = f"local/{make.ATTEMPT.lineage}"
    for path in make.PARTS.iterdir():
        places = [f"{local}/parity/{step}"] if path.suffix == ".dpy" else [f"ckpt/{step}"]
        places += [f"{local}/{step}"] if path.suffix == ".dpp" else []
        files |= {f"{place}/{path.name}": path.read_bytes() for place in places}
    lineage = {"format": "deeppart", "version": 1, "lineage": make.ATTEMPT.lineage}
    return {**files, "ckpt/deeppart.json": json.dumps(lineage).encode()}


def _settings() -> Files:
    run = {"session": "ab" * 16, "began": "2026-11-20T01:02:03.000004Z", "nodes": 2, "restored": "local"}
    runs = [run | {"seen": "2026-11-20T02:02:03.000004Z", "ended": None}, run | {"seen": None, "ended": run["began"]}]
    owner = {"session": "cd" * 16, "who": "job 5, node7, process 77", "since": run["began"]}
    toml = 'persistent_dir = "ckpt"\nevery = { local = 0, persistent = 2 }\nkeep = { persistent = 3 }\ntimeout = 30.5\n'
    toml += 'compression = "zstd:3"\nnode_size = 2\nincremental = true\nmachine = "machine.toml"\n'
    machine = 'name = "lab"\nsource = "measured"\nbase = "llama3"\n[memory]\ncopy = "9 GB/s"\ntensor = "20 us"\n'
    times = (TimedSteps(1, 2, 8, accumulating=False, count=1, mean_s=0.5),)
    profile = Profile(times, 16, GradientNoise(1.0, 2.0, 8), Bounds(8, 64, 16))
    return {
        "ckpt/deeppart.json": json.dumps({"format": "deeppart", "version": 1, "lineage": "ef" * 16}).encode(),
        "ckpt/deeppart-runs.json": json.dumps({"format": "deeppart-runs", "version": 1, "runs": runs}).encode(),
        "ckpt/deeppart-profile.json": json.dumps(profile.document()).encode(),
        "ckpt/.deeppart.lock": json.dumps(owner).encode(),
        "deeppart.toml": toml.encode(),
        "machine.toml": machine.encode(),
    }


@dataclass
class _Made:
    """Seeds under way, in a directory of their own."""

    scratch: Path
    seeds: dict[str, Seed] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[Path], object], live: Callable[[], Any]) -> None:
        root = self.scratch / name / "ckpt"
        make(root)
        paths = [path for path in root.rglob("*") if path.is_file() and path.name != ".deeppart.lock"]
        files = {f"ckpt/{path.relative_to(root)}": path.read_bytes() for path in sorted(paths)}
        if record := files.get("ckpt/deeppart.json"):  # of the directory that it names, another one would be a copy
            files["ckpt/deeppart.json"] = json.dumps({"lineage": json.loads(record)["lineage"]}).encode()
        self.seeds[name] = Seed(files, live)


def make_seeds() -> Mapping[str, Seed]:
    """All seeds by name; identities and times in them are always the same."""
    numbers = itertools.count(1)
    scratch = Path(tempfile.mkdtemp(prefix="deeppart-fuzz-seeds-"))
    clock = mock.Mock(time=lambda: 1.8e9)
    # Only the library's: torch draws identities, too, when its modules are imported.
    known = mock.Mock(uuid4=lambda: uuid.UUID(int=next(numbers)))
    try:
        with (
            mock.patch.object(owner, "uuid", known),
            mock.patch.object(lineage, "uuid", known),
            mock.patch.object(_times, "time", clock),
        ):
            made = _Made(scratch)
            made.add("odd", lambda root: _save(root, _odd(3.0), compression="none"), lambda: _odd(0.0))
            made.add("module", lambda root: _save(root, _module(2.0), compression="none"), lambda: _module(1.0))
            made.add("kinds", lambda root: _save(root, _kinds(2.0), compression="none"), lambda: _kinds(1.0))
            made.add("shards", lambda root: _save(root, _shards(2.0), compression="none"), lambda: _shards(0.0))
            made.add("planes", lambda root: _save(root, _large(2.0), compression="tensor"), lambda: _large(0.0))
            made.add("frames", lambda root: _save(root, _large(2.0), compression="zstd"), lambda: _large(0.0))
            made.add("bases", lambda root: _save(root, *_twice(), compression="none"), lambda: _large(0.0))
            made.add("ranks", lambda root: _with_ties(root, 2), _of_ranks)
            made.add("own", lambda root: _with_ties(root, 1), _of_ranks)
            key = scratch / "key"
            key.write_bytes(KEY)
            key.chmod(0o600)
            signed: dict[str, Any] = {"compression": "none", "sign_key_file": str(key)}
            made.add(SIGNED, lambda root: _save(root, _large(2.0), **signed), lambda: _large(0.0))
            made.seeds[SIGNED].files["key"] = KEY
            return {**made.seeds, "golden": Seed(_golden()), "settings": Seed(_settings())}
    finally:
        shutil.rmtree(scratch)


def _twice() -> list[dict[str, Any]]:
    one = _large(2.0)
    return [one, {**one, "weights": one["weights"] + 1}]
