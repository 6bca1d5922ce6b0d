"""Explanations of a trained model: its attention maps and its position embeddings."""
