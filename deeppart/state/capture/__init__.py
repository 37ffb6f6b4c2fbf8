"""The copy of a share into staging memory, at once or later."""
