"""One job in one directory: opened, wired, left."""
