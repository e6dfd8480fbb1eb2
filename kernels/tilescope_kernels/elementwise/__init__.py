"""Elementwise kernels, bound by memory bandwidth."""
