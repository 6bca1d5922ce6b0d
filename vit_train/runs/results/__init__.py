"""Many finished runs, gathered in tables and curves."""
