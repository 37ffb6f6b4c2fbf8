"""Random sequences of what people do with checkpoint directories: no two ever have one lineage, and so one another's
parts on nodes; and what was only moved, or started again, keeps its own.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deeppart.storage import LINEAGE_NAME, LOCK_NAME, DirectoryOwner, is_copy, read_lineage

NAMES = "abc"


def start(root: Path) -> str:
    owner = DirectoryOwner(root, "me")
    owner.close()
    return owner.lineage


class Shell:
    """What is done to the directories, and which lineage each has to have for it.

    Attributes:
        owned: by a directory's number, the lineage it had when a job last used it, while nothing was copied over it.
    """

    def __init__(self, root: Path, dice: random.Random) -> None:
        self._root, self._dice = root, dice
        self.owned: dict[int, str] = {}
        self.log: list[str] = []

    def at(self, name: str) -> Path:
        return self._root / name

    def number(self, name: str) -> int:
        return self.at(name).stat().st_ino

    def act(self) -> None:
        ways: list[Callable[[str, str], None]] = [self.job, self.job, self.copy, self.copy, self.move]
        ways += [self.remove, self.remove_lock, self.open_to_the_group, self.bring_back]
        here, there = self._dice.sample(NAMES, 2)
        if self.at(here).exists():
            way = self._dice.choice(ways)
            self.log.append(f"{way.__name__} {here} {there}")
            way(here, there)

    def job(self, here: str, _: str) -> None:
        found = start(self.at(here))
        assert self.owned.setdefault(self.number(here), found) == found, "it was its own"

    def copy(self, here: str, there: str) -> None:
        """cp -r here/. there, cp -r here/* there, rsync -a: with the lock file or without, in place or by renaming."""
        with_lock, in_place = self._dice.random() < 0.5, self._dice.random() < 0.5
        self.log[-1] += f" with lock {with_lock}, in place {in_place}"
        self.at(there).mkdir(exist_ok=True)
        for name in (LINEAGE_NAME, LOCK_NAME) if with_lock else (LINEAGE_NAME,):
            source, target = self.at(here) / name, self.at(there) / name
            if source.exists() and in_place:
                shutil.copyfile(source, target)
            elif source.exists():
                shutil.copy2(source, f"{target}.new")
                os.replace(f"{target}.new", target)
        self.owned.pop(self.number(there), None)

    def move(self, here: str, there: str) -> None:
        if not self.at(there).exists():
            self.at(here).rename(self.at(there))

    def remove(self, here: str, _: str) -> None:
        self.owned.pop(self.number(here), None)
        shutil.rmtree(self.at(here))

    def remove_lock(self, here: str, _: str) -> None:
        (self.at(here) / LOCK_NAME).unlink(missing_ok=True)

    def open_to_the_group(self, here: str, _: str) -> None:
        for path in self.at(here).iterdir():
            path.chmod(path.stat().st_mode ^ 0o040)

    def bring_back(self, here: str, _: str) -> None:
        record = self.at(here) / LINEAGE_NAME
        text = record.read_bytes()
        record.unlink()
        record.write_bytes(text)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(30))
def test_no_two_directories_have_one_lineage(seed: int, tmp_path: Path) -> None:
    for course in range(8):
        dice = random.Random(f"{seed} {course}")
        (root := tmp_path / str(course)).mkdir()
        shell = Shell(root, dice)
        start(root / "a")
        shell.owned = {shell.number("a"): read_lineage(root / "a") or ""}
        for _ in range(dice.randrange(2, 12)):
            shell.act()
        left = [name for name in NAMES if (root / name).exists()]
        dice.shuffle(left)
        told = {name: is_copy(root / name) for name in left}
        before = {name: read_lineage(root / name) for name in left}
        after = {name: start(root / name) for name in left}
        where = f"{shell.log}, then jobs in {left}: {before} -> {after}, copies {told}"
        assert len(set(after.values())) == len(left), where
        for name in left:
            own = shell.owned.get(shell.number(name))
            assert own in (None, after[name]), where
            assert not (own and told[name]), where
        first = left[:1]
        assert all(told[name] == (before[name] != after[name]) for name in first), where
