"""Weights of other libraries, in both directions: `init_from=` and `vit-export`."""
