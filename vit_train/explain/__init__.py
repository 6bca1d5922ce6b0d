"""Which patches a prediction comes from: `vit-explain`."""
