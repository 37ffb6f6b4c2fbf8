"""Directories and files are reached without going through anything that other users could have put in the way.

The way to a directory begins at the root of the file system and goes from one open directory to the next
(``openat(2)`` with ``O_NOFOLLOW``): :mod:`deeppart.access.path_walk`. What each of them must be like is said by the
rules of :mod:`deeppart.access.rules`; which rules hold below which directory is set by :func:`guard`, by whoever
opens it: a running job, or a command that reads. Elsewhere, what is read may be anyone's; what is made must be in a
directory that others cannot write to.
"""

from deeppart.access.folders import (
    Folder,
    Guards,
    create,
    directories_in,
    exists,
    guard,
    guarded,
    is_directory,
    link,
    lstat,
    make_folder,
    names_in,
    open_file,
    open_folder,
    open_found,
    release,
    remove,
    rename,
    sync_directory,
)
from deeppart.access.path_walk import make_directory
from deeppart.access.reading import ReadFile, is_foreign_directory, names_in_foreign, open_foreign
from deeppart.access.refusals import ForeignAccessError, NotRegularError, answers, storage_error
from deeppart.access.rules import PERMISSIONS, READING, Identity, Rules, node_place, node_rules, persistent_rules

__all__ = [
    "PERMISSIONS",
    "READING",
    "Folder",
    "ForeignAccessError",
    "Guards",
    "Identity",
    "NotRegularError",
    "ReadFile",
    "Rules",
    "answers",
    "create",
    "directories_in",
    "exists",
    "guard",
    "guarded",
    "is_directory",
    "is_foreign_directory",
    "link",
    "lstat",
    "make_directory",
    "make_folder",
    "names_in",
    "names_in_foreign",
    "node_place",
    "node_rules",
    "open_file",
    "open_folder",
    "open_foreign",
    "open_found",
    "persistent_rules",
    "release",
    "remove",
    "rename",
    "storage_error",
    "sync_directory",
]
