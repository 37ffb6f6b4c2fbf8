"""Restores a saved structure into a live state: selecting, matching leaves, and filling.

In this order: :func:`choose` selects what is restored, :func:`find_targets` pairs it with the live state without
changing anything, :class:`Scatter` writes bytes into the places found, and :func:`put` fills containers and objects.
:func:`build` makes a new state, for ``load``.
"""

from deeppart.state.restore.building import build
from deeppart.state.restore.choosing import Absent, Choice, choose, unmet_globs
from deeppart.state.restore.classes import resolve_registered
from deeppart.state.restore.composites import check_composites, is_composite, leaves_to_check
from deeppart.state.restore.filling import detached, put
from deeppart.state.restore.pairing import find_targets
from deeppart.state.restore.request import (
    Globs,
    Request,
    RestoreArguments,
    Strict,
    bare_name,
    request_or_refusal,
)
from deeppart.state.restore.scatter import (
    LiveBox,
    Scatter,
    Want,
    Wanted,
    cut_patch,
    whole_leaves,
)
from deeppart.state.restore.sharing import tie
from deeppart.state.restore.target import DROPPED, Target

__all__ = [
    "DROPPED",
    "Absent",
    "Choice",
    "Globs",
    "LiveBox",
    "Request",
    "RestoreArguments",
    "Scatter",
    "Strict",
    "Target",
    "Want",
    "Wanted",
    "bare_name",
    "build",
    "check_composites",
    "choose",
    "cut_patch",
    "detached",
    "find_targets",
    "is_composite",
    "leaves_to_check",
    "put",
    "request_or_refusal",
    "resolve_registered",
    "tie",
    "unmet_globs",
    "whole_leaves",
]
