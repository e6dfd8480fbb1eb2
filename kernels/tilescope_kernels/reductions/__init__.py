"""Reductions of rows, and a histogram."""
