"""Types of arguments and results of deeppart's functions, beside those in ``deeppart`` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names

if TYPE_CHECKING:
    from deeppart.cadence import CadenceReport
    from deeppart.model import LevelReport, ScrubReport
    from deeppart.part import KeyFiles
    from deeppart.plan.interval import Cadence, LevelCost, Waste
    from deeppart.progress import Epoch
    from deeppart.state.objects import SavedRecord
    from deeppart.state.paths import PerRank, PerRankFunction
    from deeppart.state.restore import RestoreArguments
    from deeppart.state.values import SavedMember

__all__ = [
    "Cadence",
    "CadenceReport",
    "Epoch",
    "KeyFiles",
    "LevelCost",
    "LevelReport",
    "PerRank",
    "PerRankFunction",
    "RestoreArguments",
    "SavedMember",
    "SavedRecord",
    "ScrubReport",
    "Waste",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Cadence": "deeppart.plan.interval",
        "CadenceReport": "deeppart.cadence",
        "Epoch": "deeppart.progress",
        "KeyFiles": "deeppart.part",
        "LevelCost": "deeppart.plan.interval",
        "LevelReport": "deeppart.model",
        "PerRank": "deeppart.state.paths.globs",
        "PerRankFunction": "deeppart.state.paths.globs",
        "RestoreArguments": "deeppart.state.restore.request",
        "SavedMember": "deeppart.state.values",
        "SavedRecord": "deeppart.state.objects",
        "ScrubReport": "deeppart.model",
        "Waste": "deeppart.plan.interval",
    },
    __all__,
)
