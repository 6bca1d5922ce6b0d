"""The tasks: each defines the model, the loss and the results. The training loop knows none."""
