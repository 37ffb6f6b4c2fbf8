"""What the tests of the commands share: real checkpoints, forged ones of several ranks, and a runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner, Result

import deeppart
from deeppart._times import now
from deeppart.cli import main
from deeppart.codec import Chooser
from deeppart.model import Attempt, Manifest, PartRecord, StepKey
from deeppart.part import encode_manifest, part_file_name, step_name
from deeppart.save import Encoders, Encoding
from deeppart.save.job import Staged
from deeppart.save.write import write_part
from deeppart.state.capture.layout import lay_out
from deeppart.state.document.part_document import PartDocument
from deeppart.state.document.structure_json import encode_tree
from deeppart.state.tensors.leaves import flat_bytes, leaf_type
from deeppart.state.tree.flattening import flatten
from deeppart.state.values import encode_value
from deeppart.storage import DurableFile, PersistentLevel, PosixStore, list_steps
from tests.unit.commits import step_directory

RAW = Encoding(Chooser("none"), Encoders(0))


def call(*arguments: object, code: int = 0, stdin: str | None = None) -> str:
    """Run ``deeppart ARGUMENTS``; what it printed, if its exit code is the one expected."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
    return result.output


def call_json(*arguments: object, code: int = 0) -> Any:
    """Run with ``--json``; the document, which must be all there is on stdout."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
    assert not result.stderr
    return json.loads(result.stdout)


def invoke(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, [str(argument) for argument in arguments], input=stdin)


def make_state(fill: float = 1.0) -> dict[str, Any]:
    """Leaves of distinct bytes: two large ones, small ones of two dtypes, a tie, and small values."""
    generator = torch.Generator().manual_seed(int(fill * 1000))
    weight = torch.randn(400, 800, generator=generator)  # 1.28 MB: a chunk of its own
    return {
        "model": {"weight": weight, "head": weight, "bias": torch.randn(100, generator=generator)},
        "moments": [torch.randn(1200, 1000, generator=generator), torch.randn(7, generator=generator)],
        "ids": torch.randint(0, 1 << 40, (50,), generator=generator),
        "noise": np.random.default_rng(int(fill * 1000)).standard_normal((3, 5)),
        "empty": torch.empty(0, 4),
        "step": 12,
        "rate": 1e-3 * fill,
        "not a number": float("nan"),
        "big": 1 << 70,
        "a/b": (None, "text", torch.bfloat16),
    }


def save(root: Path, *steps: int, local_dir: Path | None = None, **options: Any) -> None:
    """Real checkpoints of one process."""
    config = deeppart.Config(
        persistent_dir=str(root),
        local_dir=None if local_dir is None else str(local_dir),
        compression=options.pop("compression", "none"),
        keep={"persistent": 0, "local": options.pop("keep_local", 0)},
        **options,
    )
    with deeppart.Checkpointer(config) as checkpointer:
        for step in steps:
            checkpointer.checkpoint(make_state(float(step)), step=step).wait("persistent", timeout=200)


def save_states(root: Path, *states: Any, **settings: Any) -> Path:
    """Real checkpoints of one process: these states, as steps 1, 2 and so on; the directory."""
    config = deeppart.Config(persistent_dir=str(root), keep={"persistent": 0}, **settings)
    with deeppart.Checkpointer(config) as checkpointer:
        for step, state in enumerate(states, start=1):
            checkpointer.checkpoint(state, step=step).wait("persistent", timeout=200)
    return root


def save_incrementally(root: Path, local: Path) -> Path:
    """Steps 1 to 3, all on both levels; 2 and 3 refer to step 1 on the persistent one. The steps on the node."""
    frozen = torch.arange(2_000_000, dtype=torch.int32)
    where: dict[str, Any] = {"persistent_dir": str(root), "local_dir": str(local)}
    config = deeppart.Config(**where, keep={"persistent": 0, "local": 0}, compression="none")
    with deeppart.Checkpointer(config) as saving:
        for step in (1, 2, 3):
            state = {"frozen": frozen, "w": torch.full((300_000,), float(step))}
            saving.checkpoint(state, step=step).wait(timeout=200)
    (node,) = local.iterdir()
    return node


def step_dir(root: Path, step: int) -> Path:
    """The directory of the only attempt at a step, at a level."""
    found = [root / step_name(key) for key in list_steps(PosixStore(root)) if key.step == step]
    assert len(found) == 1, (step, found)
    return found[0]


def steps_in(root: Path) -> list[int]:
    """Step numbers of all step directories at a level."""
    return [key.step for key in list_steps(PosixStore(root))]


def steps_on_disk(root: Path) -> list[int]:
    """Steps that have a directory, whatever the library thinks of it."""
    return sorted(int(path.name.split("-")[1]) for path in root.glob("step-*"))


def four_steps(root: Path) -> Path:
    """Complete steps 10, 20, 30 and 40, committed in this order."""
    for step in (10, 20, 30, 40):
        forge(root, step, ranks=2)
    return root


def block(checkpointer: deeppart.Checkpointer, root: Path, step: int) -> Path:
    """A file in place of the directory of the next attempt, so that it fails at a level."""
    path = step_directory(root, StepKey(step, checkpointer._session.session, checkpointer._saves.sequence))
    path.write_text("in the way")
    return path


def part_path(root: Path, step: int, rank: int = 0, ranks: int = 1) -> Path:
    return step_dir(root, step) / part_file_name(rank, ranks)


def manifest_path(root: Path, step: int) -> Path:
    return step_dir(root, step) / "manifest"


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """Change one byte in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


Spans = list[list[tuple[int, int, int]]]


def forge(
    root: Path,
    step: int,
    ranks: int = 3,
    *,
    spans: Callable[[Spans], None] = lambda spans: None,
    record: Callable[[PartRecord], PartRecord] = lambda record: record,
    document: Callable[[dict[str, Any]], None] = lambda document: None,
) -> None:
    """A checkpoint of several ranks, made in one process with every digest right; the callbacks make it wrong.

    Leaves: ``a`` 900 float32 over all ranks, ``b`` 100 int64 on rank 0, ``rng`` 16 bytes and ``position`` per rank.
    Numbers: a 0, b 1, rng 2, position 3.
    """
    root.mkdir(parents=True, exist_ok=True)
    per_rank = np.array([False, False, True, True])
    attempt = Attempt("ab" * 16, "cd" * 16, len(list_steps(PosixStore(root))), step, ranks)
    edge = [4 * round(900 * rank / ranks) for rank in range(ranks + 1)]
    shares: Spans = [[(0, edge[rank], edge[rank + 1] - edge[rank])] for rank in range(ranks)]
    shares[0].append((1, 0, 800))
    spans(shares)
    records: list[Any] = []
    structure: dict[str, Any] = {}
    for rank in range(ranks):
        state = {
            "a": torch.arange(900, dtype=torch.float32),
            "b": torch.arange(100),
            "rng": torch.full((16,), rank % 256, dtype=torch.uint8),
            "position": 1000 + rank,
        }
        flat = flatten(state)
        types = [leaf_type(data) for data in flat.data]
        layout = lay_out(types, shares[rank], [(2, 0, types[2].nbytes)])
        data = np.zeros(layout.nbytes, dtype=np.uint8)
        for leaf, start, length, at in layout.spans[["leaf", "start", "length", "raw_offset"]].tolist():
            raw = flat_bytes(flat.data[leaf])[start : start + length]
            data[at : at + len(raw)] = raw
        values = [encode_value(leaf.value, "") for leaf in flat.values]
        described = PartDocument(encode_tree(flat.root), types, values, {}, per_rank, rank == 0)
        path = step_directory(root, attempt.key) / part_file_name(rank, ranks)
        file = DurableFile(path)
        summary = write_part(Staged(layout, data, described), file, RAW, attempt, rank)
        file.commit()
        records.append(record(summary.record(attempt, rank)))
        structure = structure or described.structure()
    document(structure)
    manifest = Manifest(attempt, now(), "deeppart test", tuple(records), structure)
    PersistentLevel(PosixStore(root)).commit(attempt.key, encode_manifest(manifest))


def live_for_forged() -> dict[str, Any]:
    """A live state that what :func:`forge` made can be restored into."""
    return {
        "a": torch.zeros(900),
        "b": torch.zeros(100, dtype=torch.int64),
        "rng": torch.zeros(16, dtype=torch.uint8),
        "position": 0,
    }
