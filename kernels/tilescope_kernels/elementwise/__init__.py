"""Kernels that compute each element by itself."""
