"""Training and evaluation, independent of particular data sets and models, Hydra and plots."""
