"""tests/ mirrors the packages: the tests of a module are found by its name, and a test file's module by its own.

The rule (CONTRIBUTING.md): tests of ``deeppart/state/capture/copying.py`` are in
``tests/unit/state/capture/test_copying.py``, those of ``simulator/timing/stages.py`` in
``tests/simulator/timing/test_stages.py``. What only runs between ranks is in ``tests/mpi/`` under the same name.
Further files may add a topic to the name: ``test_copying_<topic>.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Package -> the folders in which its tests are.
MIRRORS = {"deeppart": ("tests/unit", "tests/mpi"), "simulator": ("tests/simulator",)}
#: In these folders every test file is of a module; tests/mpi also has, beside its folders, files named after features.
FOLDERS = ("tests/unit", "tests/simulator", "tests/mpi/*")
#: Module -> why there is no test file of its name.
WITHOUT: dict[str, str] = {}


def modules(root: Path) -> list[Path]:
    """Every module, relative to the root; ``__init__`` and ``__main__`` do nothing of their own."""
    found = [path for package in MIRRORS for path in (root / package).rglob("*.py")]
    return sorted(path.relative_to(root) for path in found if path.stem not in ("__init__", "__main__"))


def files_of_tests(root: Path) -> list[Path]:
    """Every test file that is of a module, relative to the root."""
    found = {path for folder in FOLDERS for top in root.glob(folder) for path in top.rglob("test_*.py")}
    return sorted(path.relative_to(root) for path in found)


def places(module: Path) -> list[Path]:
    """Where the tests of a module may be."""
    package, *folders = module.parent.parts
    return [Path(mirror, *folders, f"test_{module.stem.lstrip('_')}.py") for mirror in MIRRORS[package]]


def untested(root: Path) -> list[str]:
    """Modules without a test file of their name."""
    return [
        f"{module}: no {' and no '.join(map(str, places(module)))}"
        for module in modules(root)
        if str(module) not in WITHOUT and not any((root / place).is_file() for place in places(module))
    ]


def homeless(root: Path) -> list[str]:
    """Test files that are of no module."""
    known = [place.with_suffix("") for module in modules(root) for place in places(module)]
    return [str(path) for path in files_of_tests(root) if not is_of_one(path.with_suffix(""), known)]


def is_of_one(path: Path, known: Sequence[Path]) -> bool:
    """Whether a test file has the name of one of these, or begins with it."""
    names = [each.name for each in known if each.parent == path.parent]
    return any(path.name == name or path.name.startswith(f"{name}_") for name in names)


def test_every_module_has_tests_of_its_name() -> None:
    missing = untested(ROOT)
    assert not missing, "modules without tests of their name:\n" + "\n".join(missing)


def test_every_test_file_is_of_a_module() -> None:
    missing = homeless(ROOT)
    assert not missing, "test files of no module:\n" + "\n".join(missing)


def test_every_exception_is_one() -> None:
    known = {str(module) for module in modules(ROOT)}
    assert not [name for name in WITHOUT if name not in known], "modules that are not there"


@pytest.mark.parametrize(
    ("files", "lacking", "left"),
    [
        (["tests/unit/state/capture/test_copying.py", "tests/unit/test_gc.py"], 0, 0),
        (["tests/mpi/state/capture/test_copying.py", "tests/mpi/test_a_feature.py", "tests/unit/test_gc.py"], 0, 0),
        (["tests/unit/state/capture/test_copying_of_devices.py", "tests/unit/test_gc.py"], 1, 0),
        (["tests/unit/test_capture.py", "tests/unit/test_gc.py"], 1, 1),
        (["tests/unit/state/test_captures.py"], 2, 1),
        (["tests/mpi/state/test_other.py", "tests/simulator/test_gc.py"], 2, 2),
    ],
)
def test_what_breaks_the_rule_is_noticed(tmp_path: Path, files: list[str], lacking: int, left: int) -> None:
    for name in ("deeppart/__init__.py", "deeppart/_gc.py", "deeppart/state/capture/copying.py", *files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert (len(untested(tmp_path)), len(homeless(tmp_path))) == (lacking, left)
