"""No package but ``access/`` turns a path into a file: what it refuses cannot be reached in another way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
#: Where something else than what lies below a checkpoint directory is meant, and what.
MEANT = {
    ("config/sources.py", "is_file"): "deeppart.toml",
    ("config/sources.py", "open"): "the same",
    ("cli/commands.py", "os.open"): "/dev/null",
    ("comm/sockets/address.py", "read_text"): "/proc/sys/kernel/random/boot_id",
    ("comm/sockets/address.py", "os.stat"): "the namespaces of this process, in /proc",
    ("mapped.py", "os.stat"): "which file system it is on; nothing is read",
    ("mapped.py", "read_text"): "/proc/self/mountinfo",
    ("storage/owner.py", "os.stat"): "what /proc says other processes have open",
    ("storage/owner.py", "glob"): "the same",
    ("storage/owner.py", "iterdir"): "the same",
    ("storage/owner.py", "read_text"): "the same",
    ("interop/torch_file.py", "open"): "a record of an archive that is being written",
    ("interop/hdf5.py", "open"): "an object of an HDF5 file that is open, by HDF5",
    ("interop/hdf5.py", "exists"): "a link or an attribute in one",
    ("cli/options.py", "is_dir"): "the directory that the caller named",
    ("offline/inspect/listing.py", "stat"): "the directory that the caller named",
    ("offline/inspect/listing.py", "is_dir"): "the same",
    ("offline/inspect/listing.py", "iterdir"): "the same",
    ("mistaken_paths.py", "is_file"): "what the caller named, for the message",
    ("mistaken_paths.py", "is_dir"): "the same",
    ("mistaken_paths.py", "os.listdir"): "the same",
    ("mistaken_paths.py", "open"): "the same: its first bytes",
    ("session/open.py", "is_dir"): "the same",
    ("interop/transformers.py", "tempfile"): "a folder of this process's own, which the Trainer reads",
    ("interop/transformers.py", "write_text"): "the same",
    ("interop/deepspeed.py", "tempfile"): "a folder of this process's own, where DeepSpeed looks for names",
    ("interop/deepspeed.py", "touch"): "the same",
    ("cli/run.py", "open"): "the log that the caller named",
    ("progress.py", "read_bytes"): "in the directory of the agent, in memory",
    ("progress.py", "exists"): "the same",
    ("progress.py", "open"): "the same",
    ("progress.py", "write_text"): "the same",
    ("progress.py", "rename"): "the same",
    ("elastic/adaptdl/checkpoint.py", "is_dir"): "the directory that the caller named, before there are checkpoints",
    ("elastic/adaptdl/checkpoint.py", "glob"): "whether it has AdaptDL's own, for the message",
    ("stopping/notices.py", "stat"): "the file that somebody touches to tell the job; nothing is read",
    ("interop/torchtitan.py", "glob"): "whether the caller named a directory of checkpoints, for the message",
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
    """``access.exists``; and the folders that it opens, and stores, which have methods of these names too."""
    return (isinstance(value, ast.Name) and value.id in ("access", "folder", "above", "there", "store")) or (
        isinstance(value, ast.Attribute) and value.attr in ("_folder", "_made", "_store", "store")
    )


def test_files_are_reached_by_way_of_access() -> None:
    """And an exception that nothing needs any more is taken away.

    Left out are access itself and the agent: the caller's script, and its directory in memory.
    """
    found = {
        (name, call): f"{name}:{line}: {call}"
        for path in ROOT.rglob("*.py")
        if not (name := str(path.relative_to(ROOT))).startswith(("access/", "agent/"))
        for line, call in calls(path.read_text())
    }
    assert [found[each] for each in sorted(found) if each not in MEANT] == []
    assert [each for each in MEANT if each not in found] == []


def test_the_search_finds() -> None:
    lines = "os.open(path, 0)", "path.unlink()", "path.open('rb')", "open(path)", "Path(x).read_bytes()"
    for line in (*lines, "import shutil", "from os import open", "rename = os.rename"):
        assert list(calls(line)), line
