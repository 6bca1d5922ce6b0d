"""The foundations of the package: settings, text, files, memory and random numbers."""
