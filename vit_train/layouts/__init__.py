"""Vision Transformers as other libraries store them: one table of names for each, both ways."""
