"""The Vision Transformer and what it is compared with, written from scratch.

Of the package these modules import only `rng`, for dropout that belongs to the image.
"""
