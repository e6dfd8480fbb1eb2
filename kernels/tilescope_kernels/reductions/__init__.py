"""Row reductions and a histogram."""
