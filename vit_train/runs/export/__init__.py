"""A trained classifier in the formats of other programs."""
