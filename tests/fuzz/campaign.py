"""Cases made and kept: the part of fuzzing that never reads a case itself."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import document_edits, file_edits, odd_values
from tests.fuzz.images import ManifestImage, PartImage
from tests.fuzz.readers import lay_out
from tests.fuzz.running import Answer, Case, Worker
from tests.fuzz.seeds import SIGNED, Files, Seed, make_seeds

MOST_KEPT = 3000


_known_seeds = functools.cache(make_seeds)


@dataclass
class Find:
    """A rule that is broken, and the case that does."""

    problem: str
    case: Case
    number: int


class Campaign:
    """Cases one after another, all of them following from one number.

    Args:
        seed: that number.
        worker: runs them.
        only: names of the seeds to begin with; None for all.
    """

    def __init__(self, seed: int, worker: Worker, *, only: list[str] | None = None) -> None:
        self._seed, self._worker = seed, worker
        self.seeds: Mapping[str, Seed] = {
            name: found for name, found in _known_seeds().items() if only is None or name in only
        }
        self._corpus: list[Case] = [Case(name, seed.files, False, 0) for name, seed in self.seeds.items()]
        self._known: set[str] = set()
        self._begun = False
        self._sound: dict[str, set[str | None]] = {}
        self.finds: dict[str, Find] = {}
        self.runs = 0

    def play(
        self, *, cases: int | None = None, seconds: float | None = None, tell: Callable[[str], None] = print
    ) -> None:
        """Run so many cases more, or until time is up."""
        began = told = time.monotonic()
        if not self._begun:
            self._begun = True
            for case in list(self._corpus):
                self._note(case, self._run(case), -1, tell)
        stop = None if cases is None else self.runs + cases
        while (stop is None or self.runs < stop) and (seconds is None or time.monotonic() - began < seconds):
            case = self.make(self.runs)
            self._note(case, self._run(case), self.runs, tell)
            self.runs += 1
            if time.monotonic() - told > 60:
                told = time.monotonic()
                tell(f"{self.runs} cases, {len(self._known)} ways to be refused, {len(self.finds)} finds")

    @property
    def ways(self) -> int:
        """In how many ways, by error and place, cases were refused."""
        return len(self._known)

    def problems_of(self, case: Case, breakage: str | None = None) -> list[str]:
        """Which rules a case breaks, with the library as it is or with something taken out (see mutants.py)."""
        return self._run(case, breakage).problems

    def _run(self, case: Case, breakage: str | None = None) -> Answer:
        answer = self._worker.run(case, breakage)
        if (case.exact or case.seed == SIGNED) and answer.loaded not in self._sound_of(case.seed):
            answer.problems.append("load: other bytes than were saved, from files that are damaged or not signed")
        return answer

    def _sound_of(self, name: str) -> set[str | None]:
        """What may be loaded from a seed's files, or from what is left of them."""
        if name not in self._sound:
            case = Case(name, self.seeds[name].files, False, 0)
            self._sound[name] = {None, self._worker.run(case).loaded, *self._older(case)}
        return self._sound[name]

    def _older(self, case: Case) -> list[str | None]:
        """What is loaded when the newest step cannot be."""
        found = []
        steps = sorted({name.split("/")[1] for name in case.files if name.startswith("ckpt/step-")})
        for count in range(1, len(steps)):
            files = {name: data for name, data in case.files.items() if not _is_of(name, steps[count:])}
            found.append(self._worker.run(Case(case.seed, files, False, 0)).loaded)
        return found

    def make(self, number: int) -> Case:
        """Case number so-and-so, of those known so far."""
        rng = random.Random(f"{self._seed}:{number}")
        # Mostly from what is sound: what is refused early hides all edits of what is looked at later.
        parent = rng.choice(self._corpus[: len(self.seeds)] if rng.random() < 0.7 else self._corpus)
        choice = rng.randrange(1 << 30)
        if rng.random() < 0.15:
            parent = Case(parent.seed, self.seeds[parent.seed].files, False, 0)
            name = rng.choice(sorted(parent.files))
            files = {**parent.files, name: file_edits.edit_bytes(parent.files[name], rng)}
            return Case(parent.seed, files, name.startswith("ckpt/step-"), choice)
        files = dict(parent.files)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            with contextlib.suppress(Exception):  # of a file that is too odd to be taken apart once more
                _forge(files, rng)
        return Case(parent.seed, files, False, choice)

    def _note(self, case: Case, answer: Answer, number: int, tell: Callable[[str], None]) -> None:
        new = set(answer.signature) - self._known
        self._known |= new
        if new and number >= 0 and len(self._corpus) < MOST_KEPT and not case.exact:
            self._corpus.append(case)
        for problem in answer.problems:
            key = problem.partition(": ")[0] + problem.partition(": ")[2][:90]
            if key not in self.finds:
                tell(f"find in case {number} of seed {self._seed} ({case.seed}): {problem}")
                self.finds[key] = Find(problem, case, number)

    def keep(self, folder: Path) -> None:
        """Write every find into a folder of its own."""
        for count, find in enumerate(self.finds.values()):
            directory = folder / f"{self._seed}-{find.number}-{count}"
            lay_out(directory / "files", find.case.files)
            case = find.case
            text = {"problem": find.problem, "seed": case.seed, "choice": case.choice, "exact": case.exact}
            (directory / "find.json").write_text(json.dumps(text, indent=1) + "\n")


def _is_of(name: str, steps: list[str]) -> bool:
    return any(f"/{step}/" in name for step in steps)


def _forge(files: Files, rng: random.Random) -> None:
    """Edit a file and make all digests right again, in it and in the manifest that names it."""
    step = rng.choice(sorted({name.rpartition("/")[0] for name in files}))
    names = sorted(name for name in files if name.rpartition("/")[0] == step)
    parts = [name for name in names if name.endswith(".dpp")]
    manifests = [name for name in names if name.endswith("/manifest")]
    kind = rng.randrange(10)
    if not parts or (kind == 0 and not manifests):
        name = rng.choice(names)
        _forge_text(files, name, rng)
        return
    images = {name: PartImage.parse(files[name]) for name in parts}
    manifest = ManifestImage.parse(files[manifests[0]]) if manifests else None
    if kind < 2 and manifest is not None:
        document_edits.edit_manifest(manifest, rng)
    elif kind < 6:
        _edit_structure(images, manifest, rng)
    else:
        image = images[rng.choice(parts)]
        if kind == 6:
            if rng.random() < 0.7:
                document_edits.edit_meta(image.meta, rng)
            else:
                image.meta = document_edits.edit_json(image.meta, rng)
        else:
            file_edits.edit_part(image, rng)
    written = {name: image.encode() for name, image in images.items()}
    files |= written
    if manifest is not None:
        if rng.random() < 0.95:
            manifest.name({name.rpartition("/")[2]: data for name, data in written.items()})
        files[manifests[0]] = manifest.encode()


def _edit_structure(images: dict[str, PartImage], manifest: ManifestImage | None, rng: random.Random) -> None:
    """The same edit wherever the structure document stands, or different ones now and then."""
    state = rng.getstate()
    holders = [image.meta for image in images.values() if isinstance(image.meta, dict) and "structure" in image.meta]
    if manifest is not None:
        holders.append(manifest.document)
    for holder in holders:
        if rng.random() < 0.97:
            rng.setstate(state)
        structure = holder["structure"]
        part = rng.choice(("tree", "leaves", "per_rank", None))
        if rng.random() < 0.75:
            document_edits.edit_structure(structure, rng)
        elif part is None or not isinstance(structure, dict) or part not in structure:
            holder["structure"] = document_edits.edit_json(structure, rng)
        else:
            structure[part] = document_edits.edit_json(structure[part], rng)


def _forge_text(files: Files, name: str, rng: random.Random) -> None:
    """A small file: JSON, TOML, or parity, which is edited as bytes."""
    data = files[name]
    if name.endswith((".json", ".lock")):
        document = document_edits.edit_json(json.loads(data), rng)
        files[name] = json.dumps(document).replace('"@deep@"', "[" * 3000).encode()
    elif name.endswith(".toml"):
        lines = data.decode().splitlines()
        at = rng.randrange(len(lines))
        left, _, right = lines[at].partition(" = ")
        odd = ("9" * 5000, "1e400", "nan", "-1", "9223372036854775808", "1979-05-27", "[" * 2000, '"\\u0000"', "{}")
        edits = (f"{left} = {rng.choice(odd)}", f"{rng.choice(odd_values.TEXTS)} = {right}", lines[at] * 2)
        lines[at] = rng.choice(edits)
        files[name] = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        files[name] = file_edits.edit_bytes(data, rng)
