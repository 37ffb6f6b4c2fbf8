"""Opens directories and files without following anything that other users could have placed there.

A session, level or command opens a :class:`Root` for each directory that the user has named.
:mod:`deeppart.access.roots` implements the operations below it, :mod:`deeppart.access.rules` decides whose directories
and files may be used.
"""

from deeppart.access.descriptors import ReadFile, with_room
from deeppart.access.refusals import NotRegularError, answers, storage_error
from deeppart.access.roots import (
    Folder,
    Root,
    Roots,
    below_root,
    create,
    exists,
    link,
    lstat,
    make_folder,
    names_in,
    open_beside_user,
    open_file,
    open_folder,
    open_foreign,
    remove,
    rename,
    root_of,
    sync_directory,
)
from deeppart.access.rules import PERMISSIONS, READING, ForeignAccessError, Rules

__all__ = [
    "PERMISSIONS",
    "READING",
    "Folder",
    "ForeignAccessError",
    "NotRegularError",
    "ReadFile",
    "Root",
    "Roots",
    "Rules",
    "answers",
    "below_root",
    "create",
    "exists",
    "link",
    "lstat",
    "make_folder",
    "names_in",
    "open_beside_user",
    "open_file",
    "open_folder",
    "open_foreign",
    "remove",
    "rename",
    "root_of",
    "storage_error",
    "sync_directory",
    "with_room",
]
