"""The machines that come along, as TOML."""
