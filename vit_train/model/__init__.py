"""The Vision Transformer and networks to compare it with, written from scratch.

These modules import only `base` from the rest of the package.
"""
