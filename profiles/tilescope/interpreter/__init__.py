"""Triton's language in NumPy, a whole grid of programs at a time: what the interpreter collector runs kernels in.

``numpy_language`` puts it in place of the interpreter's own operations; ``blocks`` holds values, ``narrow`` the formats below fp32 that
NumPy lacks, ``kernel_source`` makes a kernel run in its own namespace. Worker-side only: it imports torch and triton.
"""
