"""Training and evaluation. Depends on no particular data set or model, nor on Hydra or plotting."""
