"""The console commands. Torch is imported only after the arguments are accepted."""
