"""make torture: training killed at random moments, and the commands fed with what others made."""
