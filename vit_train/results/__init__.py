"""Tables and plots of many runs: `vit-results`."""
