"""What rank 0 tells at start-up: less protection than asked for, files of others, a copied directory."""

from __future__ import annotations

import errno
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deeppart
from deeppart.errors import DeeppartWarning, ReducedProtectionWarning
from deeppart.nodes.pairing import Protection, protect
from deeppart.plan.redundancy import Nodes
from deeppart.session.start_warnings import tell_lineage, tell_protection
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.records import reduced_runs
from deeppart.testing.faults import StorageFaults
from tests.unit.commits import FIRST, SECOND

THIRD = "3" * 32


def told(call: Callable[..., object], *arguments: Any) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [(each.category, str(each.message)) for each in caught]


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copied_directory_is_told_with_both_names(tmp_path: Path) -> None:
    original = DirectoryOwner(tmp_path / "a", "me")
    original.close()
    assert told(tell_lineage, tmp_path / "a", original) == []
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = DirectoryOwner(tmp_path / "b", "me")
    copy.close()
    ((category, text),) = told(tell_lineage, tmp_path / "b", copy)
    assert category is DeeppartWarning and text.startswith(f"{tmp_path / 'b'} is a copy of a checkpoint directory")
    assert (
        "There is nothing to do" in text
        and f"lineage, {copy.lineage}. Parts" in text
        and f"below {original.lineage} are not used. If" in text
    )
    again = DirectoryOwner(tmp_path / "b", "me")
    again.close()
    assert told(tell_lineage, tmp_path / "b", again) == [], "said once"


def test_a_record_that_was_copied_over_its_own(tmp_path: Path) -> None:
    owners = {name: DirectoryOwner(tmp_path / name, "me") for name in ("a", "b")}
    for owner in owners.values():
        owner.close()
    (tmp_path / "b" / "deeppart.json").unlink()
    shutil.copy(tmp_path / "a" / "deeppart.json", tmp_path / "b" / "deeppart.json")
    owner = DirectoryOwner(tmp_path / "b", "me")
    owner.close()
    ((_, text),) = told(tell_lineage, tmp_path / "b", owner)
    assert f"below {owners['a'].lineage} are not used, nor are those below {owners['b'].lineage}" in text


def test_the_other_ranks_own_nothing_and_tell_nothing(tmp_path: Path) -> None:
    assert told(tell_lineage, tmp_path, None) == []


def test_a_record_that_was_written_anew(tmp_path: Path) -> None:
    DirectoryOwner(tmp_path, "job 1").close()
    record = tmp_path / "deeppart.json"
    record.write_bytes(record.read_bytes().replace(b'"lineage"', b'"lineagd"'))
    owner = DirectoryOwner(tmp_path, "job 2")
    ((category, text),) = told(tell_lineage, tmp_path, owner)
    assert category is DeeppartWarning and str(record) in text and "'lineage'" in text
    assert owner.lineage in text
    owner.close()
    again = DirectoryOwner(tmp_path, "job 3")
    assert told(tell_lineage, tmp_path, again) == [] and again.lineage == owner.lineage
    again.close()


# --- protection -------------------------------------------------------------------------------------------------------


def protection(nodes: int) -> Protection:
    """What a job on so many nodes gets that asks for parity of four."""
    settings: dict[str, Any] = {"local_dir": "/l", "every": {"parity": 1, "partner": 0}}
    config = deeppart.Config(parity_group=4, parity_tolerate=2, **settings)
    return protect(config, Nodes.of(range(nodes)), tuple(f"n{node}" for node in range(nodes)), ())


def test_less_than_asked_for_is_told_every_time_and_noted(tmp_path: Path) -> None:
    for session in (FIRST, SECOND):
        ((category, text),) = told(tell_protection, tmp_path, session, protection(3))
        assert category is ReducedProtectionWarning
        assert text.startswith("less protection than asked for: parity_group = 4 and parity_tolerate = 2, but")
        assert "3 nodes" in text and "'strict'" in text and "ls" not in text
    assert [run.session for run in reduced_runs(tmp_path)] == [FIRST, SECOND]


def test_all_of_it_is_told_only_after_less(tmp_path: Path) -> None:
    assert told(tell_protection, tmp_path, FIRST, protection(4)) == [] and list(tmp_path.iterdir()) == []
    told(tell_protection, tmp_path, SECOND, protection(3))
    ((category, text),) = told(tell_protection, tmp_path, THIRD, protection(4))
    assert category is DeeppartWarning and "has all the protection that it asks for" in text
    assert told(tell_protection, tmp_path, FIRST, protection(4)) == []


def test_a_note_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOSPC, only=("write",))
        ((category, text),) = told(tell_protection, tmp_path, FIRST, protection(3))
    assert category is ReducedProtectionWarning and "(`deeppart ls` will not know: cannot write" in text
    assert list(tmp_path.iterdir()) == [] and told(tell_protection, tmp_path, FIRST, protection(4)) == []
