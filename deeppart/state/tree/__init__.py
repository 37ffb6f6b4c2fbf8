"""The nested state and its leaves: paths, values, runs; taken apart in canonical order."""
