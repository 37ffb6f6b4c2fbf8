"""The settings: one frozen record (:mod:`.record`), and where they come from (:mod:`.sources`)."""

from deeppart.config.record import Config

__all__ = ["Config"]
