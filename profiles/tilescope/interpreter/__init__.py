"""Triton's own interpreter, with hooks that count accesses, leave values out and correct narrow floats.

``triton_hooks`` replaces methods of the interpreter's builder while a launch runs; ``blocks`` holds values, ``narrow``
the formats below fp32 that NumPy lacks, ``kernel_source`` makes a kernel run in its own namespace. Worker-side only, but
for this file: the rest imports torch and triton.
"""

#: Versions of Triton whose interpreter the tests of every construct pass with.
TESTED = ("3.6.0", "3.9.0")
