"""A trained model on images: evaluated, compared, asked, explained."""
