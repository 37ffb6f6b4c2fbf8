"""One job in one directory: opened, wired, left."""

from deeppart.session.leave import Background, close_at_the_end, not_finished, settle
from deeppart.session.open import configuration_of, open_session
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session
from deeppart.session.restoring import (
    Looked,
    heal_redundancy,
    look_at,
    restore_step,
    say_restored,
    still_busy,
    tell_restored,
    tell_suspects,
)
from deeppart.session.saves import Saves, StepHistory, warn_unsaved
from deeppart.session.wiring import (
    SUSPICION_PATIENCE_S,
    cadence_for,
    pipeline_for,
    retention_for,
    scrubber_for,
    suspicions_for,
)

__all__ = [
    "SUSPICION_PATIENCE_S",
    "Background",
    "Looked",
    "Preparation",
    "Saves",
    "Session",
    "StepHistory",
    "cadence_for",
    "close_at_the_end",
    "configuration_of",
    "heal_redundancy",
    "look_at",
    "not_finished",
    "open_session",
    "pipeline_for",
    "restore_step",
    "retention_for",
    "say_restored",
    "scrubber_for",
    "settle",
    "still_busy",
    "suspicions_for",
    "tell_restored",
    "tell_suspects",
    "warn_unsaved",
]
