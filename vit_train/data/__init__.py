"""Image sources and the batches made from them, independent of any model."""
