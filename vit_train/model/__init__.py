"""The Vision Transformer and networks to compare it with, written from scratch.

From the rest of the package, these modules import only `base.rng` and `base.setting`.
"""
