"""Triton's own interpreter, with hooks that count accesses, leave values out and correct narrow floats.

``triton_hooks`` replaces methods of the interpreter's builder while a launch runs; ``blocks`` holds values, ``narrow``
the formats below fp32 that NumPy lacks, ``kernel_source`` makes a kernel run in its own namespace. Worker-side only: it imports torch and triton.
"""
