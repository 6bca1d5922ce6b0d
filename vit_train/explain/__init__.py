"""The patches behind a prediction: `vit-explain`."""
