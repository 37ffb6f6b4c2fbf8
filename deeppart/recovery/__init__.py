"""Restores a checkpoint from the nearest surviving sources into the live state."""

from deeppart.recovery.apply import restore_state
from deeppart.recovery.candidates import Recovered, check_chunks, read_candidate, recover
from deeppart.recovery.inventory import take_inventory
from deeppart.recovery.narrowing import look_at_live, refusal_of_state
from deeppart.recovery.parts import CheckedPart
from deeppart.recovery.ranks import Ranks
from deeppart.recovery.saved import SavedStep, load_step
from deeppart.recovery.suspect_warnings import suspect_lines, warn_suspect

__all__ = [
    "CheckedPart",
    "Ranks",
    "Recovered",
    "SavedStep",
    "check_chunks",
    "load_step",
    "look_at_live",
    "read_candidate",
    "recover",
    "refusal_of_state",
    "restore_state",
    "suspect_lines",
    "take_inventory",
    "warn_suspect",
]
