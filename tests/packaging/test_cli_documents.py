"""docs/commands.md and the commands: each has a section, each option exists and is described, each key is explained.

A key of ``--json`` is explained in the list of keys of its command: by an entry of its own (`steps[].places`), or by
name in the entry of what it lies in (`level`). What several commands print is in the section "JSON". Other keys must
have a name that says what they are: those in ``PLAIN``.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import deeppart
from deeppart.cli import main
from deeppart.elastic.profile import write_profile
from deeppart.model import SuspectLeaf
from deeppart.storage import DirectoryOwner, Suspicions
from deeppart.telemetry import StatusFile
from tests.unit.cli_support import call_json, flip, forge, manifest_path, part_path, save, save_states
from tests.unit.elastic.test_profile import profile_of_true
from tests.unit.telemetry.samples import in_flight, status

COMMANDS = ("ls", "show", "cat", "diff", "verify", "explain", "export", "import", "prune", "watch", "halt", "advise")
#: Names that need no explanation.
PLAIN = frozenset(
    """
    a age_s alias_of at b batch began blocked_s checkpoints cycles damage damaged damaged_leaves detail
    differences directories directory dry_run dtype efficiency elements error explanation file_bytes files form
    good goodput index_digest infinities is_restorable job kept kind last_s leaves level lineage local_batch max
    mean mean_s message min most_s name nans nans_only_a nans_only_b node node_ranks nodes number over part
    parts path per_rank_bytes process rank ranks reason reduced removed repaired replicated_bytes rms root
    samples_per_s scrubbed seconds sequence session shape sharded_bytes signed state std step step_s steps text
    total_s type unreadable_suspect_records values world_size worth written zeros
    """.split()
)
_TICKED = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"--[a-z][a-z-]+")


@cache
def sections() -> dict[str, str]:
    """Heading -> text of docs/commands.md."""
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    return {section.split()[0]: section for section in text.split("\n## ")[1:]}


def entries(section: str) -> dict[str, str]:
    """Key, without brackets -> what the list of keys of a section says of it."""
    text = sections()[section]
    if section != "JSON":
        _, _, text = text.partition("\nKeys")
    found: dict[str, str] = {}
    for entry in re.findall(r"^- (.+?)(?=\n- |\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        keys, _, about = entry.partition(": ")
        above = ""
        for key in _TICKED.findall(keys):
            plain = key.replace("[]", "")
            plain = above + plain if plain.startswith(".") else plain
            above = plain.rpartition(".")[0]
            found[plain] = found.get(plain, "") + " " + about
    return found


def paths(value: Any, above: str = "") -> Iterator[str]:
    """Every key in a document: ``steps.places.level``."""
    for item in value if isinstance(value, list) else ():
        yield from paths(item, above)
    for key, item in value.items() if isinstance(value, dict) else ():
        path = f"{above}.{key}" if above else key
        yield path
        yield from paths(item, path)


def is_explained(path: str, command: str) -> bool:
    """Whether a key has an entry, is named in the entry of one above it, or needs none."""
    own, of_all = entries(command), entries("JSON")
    name = path.rpartition(".")[2]
    if path in own or name in of_all or name in PLAIN:
        return True
    above = path
    while above:
        above = above.rpartition(".")[0]
        about = own.get(above, "") + of_all.get(above.rpartition(".")[2], "")
        if name in _TICKED.findall(about):
            return True
    return False


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
    with deeppart.Checkpointer(persistent_dir=watched):
        found["halt"] = [call_json("halt", watched, "--before", "8h"), call_json("halt", watched, "--cancel")]
    write_profile(watched, profile_of_true())
    found["advise"] = [call_json("advise", watched)]
    return found


def _differing(tmp_path: Path) -> Any:
    """What ``diff`` prints of values and elements that differ."""
    states = ({"x": torch.tensor([n]), "v": n} for n in range(2))
    root = save_states(tmp_path / "differing", *states)
    return call_json("diff", f"{root}@1", f"{root}@2", code=1)


def test_every_command_has_a_section_and_every_option_a_description() -> None:
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    assert commands.keys() == sections().keys() - {"JSON", "Completion"}
    params = {
        name: [each for one in (of, *getattr(of, "commands", {}).values()) for each in one.params]
        for name, of in commands.items()
        if of is not None
    }
    options = {name: {each for p in of for each in p.opts} | {"--help"} for name, of in params.items()}
    for name, of in params.items():
        assert all(each.help for each in of if isinstance(each, click.Option)), name
        named = {each for span in _TICKED.findall(sections()[name]) for each in _OPTION.findall(span)}
        assert not named - options[name], f"options that {name} does not have"


def test_printed_keys_are_explained_and_explained_ones_printed(documents: dict[str, list[Any]]) -> None:
    for command in COMMANDS:
        printed = {path for document in documents[command] for path in paths(document)}
        unknown = {path for path in printed if not is_explained(path, command)}
        assert not unknown, f"{command}: not in docs/commands.md, nor in PLAIN"
        assert not entries(command).keys() - printed, f"{command}: in docs/commands.md alone"
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


def test_a_key_without_explanation_is_noticed() -> None:
    assert not is_explained("new", "ls") and not is_explained("steps.new", "ls")
    assert not is_explained("nodes.new", "verify") and not is_explained("box", "verify")
    assert is_explained("steps.damage.leaves.box", "verify") and is_explained("steps.suspect.after", "verify")
