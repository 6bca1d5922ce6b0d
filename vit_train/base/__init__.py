"""What the rest of the package stands on: settings, text, files, memory, random numbers."""
