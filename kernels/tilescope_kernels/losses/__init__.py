"""Losses, with and without the linear layer before them."""
