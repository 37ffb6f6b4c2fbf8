"""Which tests `make quick` runs: those of the packages in which files differ from a commit.

    python -m tests.quick [COMMIT]

Prints folders and files for pytest. A package of the library has its tests in tests/unit/, one of the simulator in
tests/simulator/; a changed file of tests is run itself, unless it needs ranks. One save and restore is always run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Whatever has changed.
ALWAYS = ("tests/unit/test_checkpointer.py", "tests/packaging/test_documents.py")
#: Their tests need launchers, or take minutes.
SLOW = ("tests/mpi/", "tests/faults/", "tests/slurm/", "tests/sharded/", "tests/elastic/", "tests/features/")


def main() -> None:
    """Print them."""
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    found = set(ALWAYS)
    for name in (*_lines("diff", "--name-only", commit), *_lines("ls-files", "--others", "--exclude-standard")):
        found |= set(_tests_of(Path(name)))
    kept = {name for name in found if not any(name != other and name.startswith(f"{other}/") for other in found)}
    print(*sorted(kept))


def _tests_of(path: Path) -> list[str]:
    first, *rest = path.parts
    if path.suffix != ".py" or not path.exists():
        return []
    if first == "tests":
        return [] if str(path).startswith(SLOW) or not path.name.startswith("test_") else [str(path)]
    if first not in ("deeppart", "simulator"):
        return []
    folder = Path("tests", "unit" if first == "deeppart" else "simulator")
    name = rest[0].removesuffix(".py")
    beside = folder / f"test_{name}.py"
    return [str(each) for each in (folder / name, beside) if each.exists()]


def _lines(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
