"""A run from its setup to its summary: its folder, its lock, resuming and extending it."""
