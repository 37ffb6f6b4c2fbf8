"""Real checkpoints on this machine: to calibrate the model, and to validate it."""
