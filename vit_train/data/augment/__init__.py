"""Augmentation of whole batches on the device."""
