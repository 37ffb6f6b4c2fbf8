"""Version of the library; setup.cfg reads it from here."""

VERSION = "0.2.0"
#: The writer's name in checkpoints.
LIBRARY = f"deeppart {VERSION}"
