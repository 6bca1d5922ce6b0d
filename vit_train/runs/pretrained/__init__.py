"""Weights that training starts from: those of a run, or of another library."""
