"""Where images come from and how they become batches. Knows nothing of models."""
