"""Figures: image grids, galleries of results, curves, position embeddings."""
