"""What the commands share around Hydra: errors, help, overrides, resuming, sweeps."""
