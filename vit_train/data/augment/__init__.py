"""How training images vary: every draw is made per image, every operation works on the batch."""
