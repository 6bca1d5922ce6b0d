"""The tasks: each defines a model, a loss and results. The training loop is the same for all."""
