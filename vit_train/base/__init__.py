"""Foundations of the package: settings, text, files, memory and random numbers."""
