"""The Vision Transformer and networks to compare it with, written from scratch.

These modules import only `base` and `config` from the rest of the package.
"""
