"""Copies of checkpoint directories that pass for the original, with its parts on nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from deeppart.storage import LINEAGE_NAME, LOCK_NAME


def copy_as_original(source: Path, target: Path) -> Path:
    """Copy all below a folder, without what checkpoint directories in it are known by."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(LOCK_NAME))
    for path in target.rglob(LINEAGE_NAME):
        record = json.loads(path.read_bytes())
        path.write_text(json.dumps({"lineage": record["lineage"]}))
    return target
