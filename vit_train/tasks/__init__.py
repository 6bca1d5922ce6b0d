"""The tasks; each defines model, loss and results. The training loop knows none of them."""
