"""The Vision Transformer and networks to compare it with, written from scratch.

These modules import only `rng` from the rest of the package, for per-image dropout.
"""
