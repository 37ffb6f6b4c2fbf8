"""A machine as numbers, read from and written to TOML files."""
