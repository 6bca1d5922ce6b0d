"""Data augmentation. Every draw is made per image; every operation works on the whole batch."""
