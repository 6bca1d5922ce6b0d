"""Evaluating, comparing and predicting: `vit-eval`, `vit-predict` and `vit-suspects`."""
