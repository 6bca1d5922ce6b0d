"""Runs: their settings, files and checkpoints, and the models and images that belong to them."""
