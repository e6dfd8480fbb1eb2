"""GPUs: which is here, what it can do at most, what a kernel occupies of it, and who holds it."""
