"""Evaluating, comparing and predicting: `vit-eval` and `vit-predict`."""
