"""Training and evaluation of any model on any data set, independent of Hydra and plotting."""
