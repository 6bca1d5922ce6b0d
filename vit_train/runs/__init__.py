"""What happens in a run: its parts, training, evaluation, its folder, loading, comparing."""
