"""What a trained model attends to, where predictions come from, what it knows of positions."""
