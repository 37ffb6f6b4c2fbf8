"""One run of a job in one directory: opening, saving, restoring, and closing."""

from deeppart.session.background import SUSPICION_PATIENCE_S, Background
from deeppart.session.open import configuration_of, open_session
from deeppart.session.record import Session
from deeppart.session.restoring import (
    heal_redundancy,
    preview_restore,
    restore_step,
    say_restored,
    still_busy,
    warn_restored,
    warn_suspects,
)
from deeppart.session.saves import Saves, StepHistory, warn_unsaved
from deeppart.session.shutdown import not_finished, process_sessions
from deeppart.session.stops import EXIT_CODES, GO_ON, Stops

__all__ = [
    "EXIT_CODES",
    "GO_ON",
    "SUSPICION_PATIENCE_S",
    "Background",
    "Saves",
    "Session",
    "StepHistory",
    "Stops",
    "configuration_of",
    "heal_redundancy",
    "not_finished",
    "open_session",
    "preview_restore",
    "process_sessions",
    "restore_step",
    "say_restored",
    "still_busy",
    "warn_restored",
    "warn_suspects",
    "warn_unsaved",
]
