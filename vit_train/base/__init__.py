"""Foundations of the package: logging, text, files, memory and random numbers."""
