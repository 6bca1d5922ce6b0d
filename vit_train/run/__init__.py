"""Training a run (`vit-train`), and previews of it (`vit-augment`, `vit-data`, `vit-inspect`)."""
