"""What a trained model attends to, where its answers come from, what it knows about places."""
