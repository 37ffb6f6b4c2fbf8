"""One case through everything that reads files, and the rules that hold for it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from deeppart_simulator.machine.files import read_machine

import deeppart
from deeppart.cadence import History
from deeppart.cli import main
from deeppart.elastic.profile import read_profile
from deeppart.errors import DeeppartError, StateError
from deeppart.extension.export import export
from deeppart.offline.inspect.node_files import verify_nodes
from deeppart.part import FileSource, PartReader, decode_manifest
from deeppart.plan.restart import survey
from deeppart.state.tensors.composites import decompose
from deeppart.storage import NodeContents, PosixStore, read_lineage, read_owner, take_stock

PACKAGE = Path(deeppart.__file__).parent

#: For the threads of a case to end.
THREADS_S = 30.0


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        signature: "operation: error at place" of everything that was refused.
        problems: rules that were broken.
        loaded: what ``load`` gave, described; None if it was refused.
    """

    signature: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    loaded: str | None = None


def run_case(directory: Path, live: Callable[[], Any] | None, choice: int) -> Outcome:
    """Read everything in a directory.

    Args:
        live: makes a state to restore into.
        choice: which of the dearer readers take part, and what is changed in the live state.
    """
    outcome = Outcome()
    rng = random.Random(choice)
    root = directory / "ckpt"
    with _inside(directory), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, operation in _operations(directory, root, outcome, rng):
            _tried(name, operation, outcome)
        if live is not None:
            for change in {None, rng.choice((None, "drop", "none", "lists"))}:
                _tried("restore", lambda change=change: _restore(root, live(), change, outcome), outcome)  # type: ignore[misc]
    return outcome


def _operations(
    directory: Path, root: Path, outcome: Outcome, rng: random.Random
) -> Iterator[tuple[str, Callable[[], object]]]:
    for path in sorted(root.glob("step-*/manifest")):
        yield "manifest", lambda path=path: decode_manifest(path.read_bytes(), where="a case")  # type: ignore[misc]
    for path in sorted(root.glob("step-*/*.dpp")):
        yield "part", lambda path=path: _read_part(path)  # type: ignore[misc]
    if list(root.glob("step-*")):
        yield "load", lambda: _load(root, outcome)
        dearer: list[tuple[str, Callable[[], object]]] = [
            ("load keys", lambda: deeppart.load(root, keys=["*a*", "*/1*"])),
            ("load rank", lambda: deeppart.load(root, rank=1)),
            ("load mmap", lambda: described(deeppart.load(root, mmap=True))),
            ("ls", lambda: _command("ls", root)),
            ("show", lambda: _command("show", root)),
            ("show flat", lambda: _command("show", root, "--flat")),
            ("show json", lambda: _command("show", root, "--json")),
            ("show stats", lambda: _command("show", root, "--stats")),
            ("diff", lambda: _command("diff", root, root)),
            ("cat", lambda: _command("cat", root, "(root)")),
            ("cat json", lambda: _command("cat", root, "(root)", "--json")),
            ("verify", lambda: _command("verify", root, "--all")),
            ("export", lambda: export(root, directory / "out.h5", overwrite=True)),
        ]
        yield from rng.sample(dearer, 4)
    if (directory / "local").exists():
        yield "nodes", lambda: _nodes(directory / "local")
        yield "ls local", lambda: _command("ls", root, "--local", directory / "local")
    yield "lineage", lambda: read_lineage(root)
    if (root / "deeppart-runs.json").exists():
        yield "history", lambda: History(PosixStore(root), "ab" * 16, 1)
    if (root / "deeppart-profile.json").exists():
        yield "profile", lambda: read_profile(root)
    if (root / ".deeppart.lock").exists():
        yield "owner", lambda: read_owner(root)
        yield "directory", lambda: deeppart.Checkpointer(deeppart.Config(persistent_dir=str(root))).close()
    if (directory / "deeppart.toml").exists():
        yield "configuration", deeppart.Config
        yield "machine", lambda: read_machine(str(directory / "machine.toml"))


def _tried(name: str, operation: Callable[[], object], outcome: Outcome) -> None:
    try:
        operation()
    except DeeppartError as error:
        outcome.signature.append(f"{name}: {type(error).__name__} at {_place(error)}")
        try:
            text = str(error)
        except Exception as untold:
            outcome.problems.append(f"{name}: {type(error).__name__} that cannot be told: {type(untold).__name__}")
        else:
            if len(text) > 20_000:
                outcome.problems.append(f"{name}: an error of {len(text)} characters at {_place(error)}")
    except BaseException as error:
        where = _place(error)
        outcome.signature.append(f"{name}: {type(error).__name__} at {where}")
        outcome.problems.append(f"{name}: {type(error).__name__} at {where}: {ascii(str(error))[:200]}")


def _place(error: BaseException) -> str:
    """The innermost line of the library that an error went through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(str(PACKAGE)):
            return f"{Path(frame.filename).relative_to(PACKAGE)}:{frame.name}:{frame.line}"
    return "elsewhere"


def _read_part(path: Path) -> None:
    with FileSource(path) as source:
        reader = PartReader(source, where="a case")
        reader.verify()
        for chunk in range(len(reader.chunks)):
            reader.read_chunk(chunk)


def _load(root: Path, outcome: Outcome) -> None:
    outcome.loaded = described(deeppart.load(root, sign_key_file=_key(root)))


def _key(root: Path) -> Path | None:
    """The key beside a directory of checkpoints, if they are signed."""
    key = root.parent / "key"
    if not key.exists():
        return None
    key.chmod(0o600)
    return key


def _command(*arguments: object) -> None:
    CliRunner(catch_exceptions=False).invoke(main, [str(argument) for argument in arguments])


def _nodes(local: Path) -> None:
    for directory in sorted(local.iterdir()):
        stock = take_stock(local, directory.name, None)
        verify_nodes([(local, stock)], None)
        survey(NodeContents.inventory([stock], ()))


def _restore(root: Path, state: Any, change: str | None, outcome: Outcome) -> None:
    per_rank: Any = "drop" if change == "drop" else lambda path, values, rank, size: values[0]
    if change in ("none", "lists"):
        for key in list(state)[::2]:
            state[key] = None
    before = described(state)
    try:
        key = _key(root)
        keys = None if key is None else str(key)
        config = deeppart.Config(persistent_dir=str(root), local_dir=None, sign_key_file=keys)
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.restore(state, per_rank=per_rank)
    except DeeppartError as error:
        of_object = isinstance(error, StateError) and "load_state_dict of" in str(error)
        says_so = of_object or "build the state again" in str(error)
        if not says_so and described(state) != before:
            outcome.problems.append(f"restore: a live state half changed by {type(error).__name__} at {_place(error)}")
        raise
    except BaseException:
        if described(state) != before:
            outcome.problems.append("restore: a live state half changed by an error that is not typed")
        raise


def described(state: Any) -> str:
    """All of a state as text: types, shapes and bytes."""
    if isinstance(state, torch.Tensor) and (parts := decompose(state, "")) is not None:
        return f"{parts.kind}: {described(parts.items)}"
    if isinstance(state, torch.Tensor):
        octets = b""
        if state.numel() < 1 << 24:
            octets = state.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{state.dtype}{tuple(state.shape)}{octets.hex()}"
    if isinstance(state, np.ndarray):
        return f"{state.dtype}{state.shape}{state.tobytes().hex() if state.size < 1 << 24 else ''}"
    if isinstance(state, dict):
        return f"{type(state).__name__}{{{', '.join(f'{key!a}: {described(item)}' for key, item in state.items())}}}"
    if isinstance(state, (list, tuple)) and type(state) is not torch.Size:
        return f"{type(state).__name__}({', '.join(map(described, state))})"
    if hasattr(state, "state_dict"):
        return f"{type(state).__name__}: {described(state.state_dict())}"
    return f"an int of {state.bit_length()} bits" if type(state) is int and state.bit_length() > 5000 else ascii(state)


@contextlib.contextmanager
def _inside(directory: Path) -> Iterator[None]:
    """The working directory, for deeppart.toml; until the threads have ended that a refused restore leaves behind."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        _wait_for_threads()
        os.chdir(before)


def _wait_for_threads() -> None:
    """What an error closes ends in the background: what it still reads belongs to this case, not to the next."""
    ends_at = time.monotonic() + THREADS_S
    for thread in threading.enumerate():
        if thread.name.startswith("deeppart-"):
            thread.join(max(ends_at - time.monotonic(), 0.0))


def lay_out(directory: Path, files: dict[str, bytes]) -> None:
    """Make a directory that holds exactly these files."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
