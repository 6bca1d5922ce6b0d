"""Everything that draws: image grids, curves, overlays, positions."""
