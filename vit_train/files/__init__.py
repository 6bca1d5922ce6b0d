"""Text, files and memory: what the rest of the package stands on."""
