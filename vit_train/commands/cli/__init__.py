"""Code around Hydra that the commands share: errors, help, overrides, resuming, sweeps."""
