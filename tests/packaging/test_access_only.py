"""No package but ``access/`` turns a path into a file: what it refuses cannot be reached in another way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import deeppart

ROOT = Path(deeppart.__file__).parent
#: Functions of ``os`` that take a path.
BY_PATH = frozenset(
    "open stat lstat rename renames replace link symlink unlink remove removedirs listdir scandir mkdir makedirs rmdir "
    "walk fwalk chmod chown truncate utime access mkfifo mknod readlink statvfs".split()
)
#: Methods of ``Path`` that do, and of nothing else that is used here.
OF_PATH = frozenset(
    "stat lstat exists is_dir is_file is_symlink iterdir glob rglob unlink rmdir mkdir touch rename read_bytes "
    "read_text write_bytes write_text symlink_to hardlink_to samefile resolve readlink chmod open".split()
)
MODULES = frozenset({"shutil", "tempfile", "glob", "fileinput"})
#: Package -> calls that mean something else than what lies below a checkpoint directory.
MEANT: dict[str, set[str]] = {
    # deeppart.toml and the machine file
    "config": {"is_file", "open"},
    # directories that the caller named; /dev/null; measurements in directories of their own
    "cli": {"is_dir", "os.open", "read_text", "shutil"},
    # this process in /proc and the boot id
    "comm": {"os.stat", "read_text"},
    # what other processes have open, in /proc; mounts; what the caller named instead of a directory, for the message
    "storage": {"os.stat", "glob", "iterdir", "read_text", "is_file", "is_dir", "os.listdir", "open"},
    "session": {"is_dir"},
    # objects of an HDF5 or zip archive that is open; scratch folders; the caller's directory
    "interop": {"open", "exists", "tempfile", "write_text", "touch", "glob"},
    # a part, by its number; the directory that the caller named
    "offline": {"open", "is_dir", "stat", "is_file", "iterdir"},
    # files that the caller named; the children of this process, in /proc
    "elastic": {"is_dir", "glob", "open", "stat", "iterdir", "read_bytes"},
    # the file by which somebody tells the job to stop; nothing is read
    "stopping": {"stat"},
}


def calls(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each call that takes a path to the operating system, and of each import of a module that does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in MODULES)
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                yield from ((node.lineno, f"os.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if of_os and node.attr in BY_PATH:
                yield node.lineno, f"os.{node.attr}"
            elif not of_os and node.attr in OF_PATH and not _is_access(node.value):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node.lineno, "open"


def _is_access(value: ast.expr) -> bool:
    """``access.exists``; and the folders that it opens, whose names these methods have too."""
    return (isinstance(value, ast.Name) and value.id in ("access", "folder", "above", "there")) or (
        isinstance(value, ast.Attribute) and value.attr == "_folder"
    )


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_reached_by_way_of_access(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name.startswith(("access/", "testing/")):
        pytest.skip("the package itself; helpers for tests")
    meant = MEANT.get(name.partition("/")[0], set())
    assert not [f"{name}:{line}: {call}" for line, call in calls(path.read_text()) if call not in meant]


@pytest.mark.parametrize(
    "line",
    [
        "os.open(path, 0)",
        "path.unlink()",
        "path.open('rb')",
        "open(path)",
        "import shutil",
        "from os import open",
        "rename = os.rename",
        "Path(x).read_bytes()",
    ],
)
def test_the_search_finds(line: str) -> None:
    assert list(calls(line))
