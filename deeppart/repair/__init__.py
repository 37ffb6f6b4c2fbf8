"""Repair of damaged or lost files: after a restore, in the background of a job, and offline."""

from deeppart.repair.files import repair_files
from deeppart.repair.heal import Healer, heal_recovered, healing_for
from deeppart.repair.mending import Repaired
from deeppart.repair.scrub import Ground, Scrubber

__all__ = [
    "Ground",
    "Healer",
    "Repaired",
    "Scrubber",
    "heal_recovered",
    "healing_for",
    "repair_files",
]
