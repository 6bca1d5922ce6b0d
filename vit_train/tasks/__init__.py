"""The tasks; each defines model, loss and results. The training loop depends on none of them."""
