"""The Vision Transformer, written from scratch: imports torch and nothing else of the package."""
