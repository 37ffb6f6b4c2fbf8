"""Version of the library; setup.cfg reads it from here."""

VERSION = "0.2.0"
#: What checkpoints say of their writer.
LIBRARY = f"deeppart {VERSION}"
