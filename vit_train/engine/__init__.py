"""Training and evaluation. Knows no data set, no model by name, no Hydra, no figure."""
