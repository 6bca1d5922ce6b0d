"""The commands. Torch is imported only after the arguments are accepted."""
