"""The settings: one frozen record (:mod:`.record`), where they come from, and what was meant by a misspelt name."""

from deeppart.config.record import Config

__all__ = ["Config"]
