"""Kernels that reduce rows, or count."""
