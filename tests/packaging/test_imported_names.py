"""What scripts, benchmarks and documents import from the library is there, also where it stands in a text."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from deeppart.errors import ConfigError

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "examples", "slurm", "tests")
FILES = [ROOT / "README.md"] + [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md", ".sh")
]
#: ``from deeppart.part import (FileSource, PartReader)``, at the top of a module or within a script that a test starts.
IMPORT = re.compile(r"\bfrom (deeppart(?:_simulator)?[\w.]*) import (\([^)]*\)|[\w, ]+)")


def imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import from the library."""
    for found in IMPORT.finditer(text):
        for entry in found[2].strip("() ").split(","):
            if name := entry.split(" as ")[0].strip():
                yield found[1], name


def is_there(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ConfigError:  # the module of a trainer that is not installed
        return is_written(module, name)
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        return missing not in ("", "deeppart", "deeppart_simulator") and is_written(module, name)
    return True


def is_written(module: str, name: str) -> bool:
    """Whether a module that needs what is not installed here has a class or function of this name."""
    source = importlib.util.find_spec(module)
    assert source is not None and source.origin is not None
    return re.search(rf"^(class|def) {name}\b", Path(source.origin).read_text(), re.MULTILINE) is not None


def test_texts_are_searched_too() -> None:
    script = (
        'script = """\n    from deeppart.part import (\n        FileSource,\n        PartReader as Reader,\n    )\n"""'
    )
    assert list(imported(script)) == [("deeppart.part", "FileSource"), ("deeppart.part", "PartReader")]
    assert is_there("deeppart", "Config") and is_there("deeppart", "errors")
    assert not is_there("deeppart", "Confg") and not is_there("deeppart.gone", "Config")


def test_names_exist() -> None:
    """One test for all files: who imports every module, with the trainers behind some, is one process."""
    wanted = defaultdict[tuple[str, str], list[str]](list)
    for path in FILES:
        for each in set(imported(path.read_text())) if path != Path(__file__) else ():
            wanted[each].append(str(path.relative_to(ROOT)))
    gone = {
        f"from {module} import {name}": files for (module, name), files in wanted.items() if not is_there(module, name)
    }
    assert len(wanted) > 500 and gone == {}
