"""Directories and files are reached without going through anything that other users could have put in the way.

A :class:`Root` is opened for each directory that a user has named, by whoever uses it: a session, a level, a command.
:mod:`deeppart.access.roots` has what is done below it, :mod:`deeppart.access.rules` whose directories and files may be
used.
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
