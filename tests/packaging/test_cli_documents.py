"""The tables of docs/commands.md and what the commands print with ``--json``: every key is in both.

A key is told by a row of its own (`steps[].state`, in the first column), or by name in the description of the row of
what it lies in (`nodes`: `files`, `bytes`), which "as for `ls`" may have from another table.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.elastic.profile import write_profile
from deeppart.model import SuspectLeaf
from deeppart.storage import DirectoryOwner, Suspicions
from deeppart.telemetry import StatusFile
from tests.unit.cli_support import call_json, flip, forge, manifest_path, part_path, save, save_states
from tests.unit.elastic.test_profile import profile_of_true
from tests.unit.telemetry.samples import in_flight, status

COMMANDS = ("ls", "show", "cat", "diff", "verify", "explain", "export", "import", "prune", "watch", "advise")
_TICKED = re.compile(r"`([^`]+)`")


def tables() -> dict[str, dict[str, str]]:
    """Command -> key, without brackets -> what the document says of it."""
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for section in text.split("\n## ")[1:]:
        _, _, table = section.partition("\n| key | |\n|-----|-|\n")
        rows: dict[str, str] = {}
        above = ""
        for line in table.split("\n\n")[0].splitlines():
            _, keys, description, _ = re.split(r"(?<!\\)\|", line)
            for key in _TICKED.findall(keys):
                plain = key.replace("[]", "")
                plain = above + plain if plain.startswith(".") else plain
                above = plain.rpartition(".")[0]
                rows[plain] = rows.get(plain, "") + description
        found[section.split()[0]] = rows
    return found


def paths(value: Any, above: str = "") -> Iterator[str]:
    """Every key in a document: ``steps.places.level``."""
    for item in value if isinstance(value, list) else ():
        yield from paths(item, above)
    for key, item in value.items() if isinstance(value, dict) else ():
        path = f"{above}.{key}" if above else key
        yield path
        yield from paths(item, path)


def is_told(path: str, command: str) -> bool:
    """Whether a key is in the table of a command."""
    rows = tables()[command]
    if path in rows:
        return True
    row, _, name = path.rpartition(".")
    names = [name]
    while row and row not in rows:
        row, _, name = row.rpartition(".")
        names.append(name)
    words = _words(rows.get(row, ""), row.rpartition(".")[2])
    return bool(row) and words.issuperset(names)


def _words(description: str, name: str) -> set[str]:
    """What a description names, and those of the same name that it points to do."""
    words = {word.replace("[]", "") for word in _TICKED.findall(description)}
    for other in re.findall(r"as for `(\w+)`", description):
        for path, there in tables()[other].items():
            if path.rpartition(".")[2] == name:
                words |= _words(there, name)
    return words


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Command -> what it prints, of checkpoints that have something to say for every list."""
    leaf = SuspectLeaf("a", "0 and 1", 0, 0)
    monkeypatch.setattr(Suspicions, "of", lambda self, attempt: (leaf,) if attempt else ())
    local, root, forged = tmp_path / "local", tmp_path / "ckpt", tmp_path / "forged"
    save(root, 1, 2, 3, local_dir=local)
    for step in (1, 2, 3):
        forge(forged, step)
    flip(part_path(forged, 2, 1, 3), 4200)
    part_path(forged, 3, 1, 3).unlink()
    found: dict[str, list[Any]] = {
        "show": [call_json("show", root), call_json("show", forged, "--step", 1, "--stats")],
        "cat": [call_json("cat", root, "model"), call_json("cat", root, "rate")],
        "diff": [call_json("diff", f"{root}@1", f"{forged}@1", code=1), _differing(tmp_path)],
        "export": [call_json("export", root, tmp_path / "out.h5"), call_json("export", root, tmp_path / "out.pt")],
    }
    deques = save_states(tmp_path / "deques", {"window": collections.deque(range(20), 30)})
    found["cat"].append(call_json("cat", deques, "window"))
    found["import"] = [call_json("import", tmp_path / "out.pt", tmp_path / "imported")]
    (lineage,) = (path for path in local.iterdir() if len(path.name) == 32)
    flip(part_path(lineage, 1), 6000)
    found["verify"] = [
        call_json("verify", forged, "--all", code=1),
        call_json("verify", root, "--all", "--local", local, "--repair"),
    ]
    found["ls"] = [call_json("ls", root, "--local", local), call_json("ls", forged)]
    flip(manifest_path(root, 3), 40)
    part_path(root, 2).unlink()
    found["explain"] = [
        call_json("explain", root),
        call_json("explain", root, "--local", local),
    ]
    found["prune"] = [call_json("prune", forged, "--before", "2", "--yes", "--allow-empty")]
    watched = tmp_path / "watched"
    owner = DirectoryOwner(watched, "a job")
    going = in_flight(1, 2, persistent="running")
    StatusFile(watched, owner.session, 0).write(status(session=owner.session, checkpoints=(going,)))
    owner.close()
    found["watch"] = [call_json("watch", watched, code=1)]
    write_profile(watched, profile_of_true())
    found["advise"] = [call_json("advise", watched)]
    return found


def _differing(tmp_path: Path) -> Any:
    """What ``diff`` prints of values and elements that differ."""
    states = ({"x": torch.tensor([n]), "v": n} for n in range(2))
    root = save_states(tmp_path / "differing", *states)
    return call_json("diff", f"{root}@1", f"{root}@2", code=1)


def test_documents_and_tables_have_the_same_keys(documents: dict[str, list[Any]]) -> None:
    for command in COMMANDS:
        printed = {path for document in documents[command] for path in paths(document)}
        assert not {path for path in printed if not is_told(path, command)}, f"{command}: not in docs/commands.md"
        assert not tables()[command].keys() - printed, f"{command}: in docs/commands.md alone"
    for command, path in [  # lists that are not empty: otherwise their keys have not been compared
        ("ls", "steps.suspect.path"),
        ("ls", "steps.places.level"),
        ("show", "leaves.holdings.rank"),
        ("show", "leaves.stats_per_rank.mean"),
        ("cat", "leaves.data"),
        ("cat", "leaves.value"),
        ("diff", "differences.b.leaves"),
        ("diff", "differences.detail.place"),
        ("verify", "steps.damage.leaves.path"),
        ("verify", "nodes.damage.path"),
        ("verify", "repairs.path"),
        ("explain", "parts.sources.level"),
        ("explain", "rejected.step"),
        ("prune", "remove.directories"),
        ("watch", "checkpoints.levels.late"),
        ("watch", "errors.text"),
        ("watch", "ranks.scrubbed.cycles"),
        ("advise", "sizes.per_rank"),
    ]:
        assert any(path in paths(document) for document in documents[command]), (command, path)


def test_a_key_that_is_in_no_table_is_noticed() -> None:
    assert not is_told("new", "ls") and not is_told("steps.new", "ls") and not is_told("nodes.new", "verify")
    assert is_told("nodes.damage.path", "verify") and is_told("steps.suspect.ranks", "verify")
