"""The Vision Transformer and the networks it is compared with, written from scratch.

These modules import only `rng` from the rest of the package, for per-image dropout.
"""
