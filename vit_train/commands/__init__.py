"""The console commands. PyTorch is imported only after the arguments are accepted."""
