"""What a trained model looks at, and what it knows about places."""
