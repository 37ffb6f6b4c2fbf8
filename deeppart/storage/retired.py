"""The check that missing or damaged files are only being retired: jobs retire steps while others read them.

A step's manifest is removed before anything else of it, and a file that refers to others before those
(:func:`deeppart.storage.steps.remove_step`). So whoever finds something damaged or missing asks here afterwards: where
the manifest, or on a node the file itself, is still there, it is damage.
"""

from __future__ import annotations

from pathlib import Path

from deeppart import access
from deeppart.storage.steps import MANIFEST_NAME

#: How often we look again because a running job has removed what it was about to read.
MOST_LOOKS = 20


def step_is_retired(directory: Path) -> bool:
    """True if a committed step is being retired: its manifest is gone."""
    return is_gone(directory / MANIFEST_NAME)


def is_gone(path: Path) -> bool:
    """True if a file on a node, or a step directory, is gone; False if that cannot be found out."""
    try:
        access.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # such as a file in place of the directory, which no job puts there
        return False
    return False
