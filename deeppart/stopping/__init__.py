"""Being told to end: signals, files, and ranks that agree on the step; for :mod:`deeppart.elastic` and trainers."""
