"""Hooks for Triton's own interpreter: its builder's methods are replaced by ones that count and that run fast on NumPy.

``numpy_language`` installs them for a launch, ``blocks`` holds values, ``narrow`` the formats below fp32 that NumPy
lacks, and ``kernel_source`` makes a kernel run in its own namespace. Worker-side only: it imports torch and triton.
"""
