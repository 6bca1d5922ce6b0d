"""Runs: their setup, training, evaluation, folder, loading and comparison."""
