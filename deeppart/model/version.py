"""Version of the library."""

VERSION = "0.1.0"
#: What checkpoints say of their writer.
LIBRARY = f"deeppart {VERSION}"
