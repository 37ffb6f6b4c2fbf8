"""Repair of damaged or lost files: after a restore, in the background of a job, and offline."""

from deeppart.repair.files import repair_files
from deeppart.repair.heal import Healer, heal_recovered, healing_for
from deeppart.repair.mending import Repaired
from deeppart.repair.moved_files import advice, misnamed
from deeppart.repair.scrub import Ground, Scrubber, ScrubReport

__all__ = [
    "Ground",
    "Healer",
    "Repaired",
    "ScrubReport",
    "Scrubber",
    "advice",
    "heal_recovered",
    "healing_for",
    "misnamed",
    "repair_files",
]
