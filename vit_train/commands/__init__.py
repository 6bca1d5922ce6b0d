"""The console commands. They import PyTorch only after they have checked the arguments."""
