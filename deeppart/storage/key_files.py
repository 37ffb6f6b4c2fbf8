"""Key files: what checkpoints are signed with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deeppart.config.sources import read_secret
from deeppart.part import Signing

#: What is taken for ``sign_key_file``: one file, or several, of which the first signs and all verify; None for no keys.
KeyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


def read_key_files(files: KeyFiles) -> Signing | None:
    """The keys of ``sign_key_file``; None without any."""
    if files is None:
        return None
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    return Signing([read_secret(Path(each).absolute()) for each in paths]) if paths else None
