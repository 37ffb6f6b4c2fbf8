"""Repair of damaged or lost files while a job runs."""

from deeppart.repair.heal import Healer, heal_recovered, healing_for
from deeppart.repair.scrub import Ground, Scrubber, ScrubReport

__all__ = [
    "Ground",
    "Healer",
    "ScrubReport",
    "Scrubber",
    "heal_recovered",
    "healing_for",
]
