"""Triton's own interpreter, with hooks that count accesses, leave out values and correct narrow floats.

``interpret`` runs a launch. ``triton_hooks`` replaces methods of the interpreter's builder meanwhile, and ``kernel_source``
rewrites the kernel's Python. ``blocks`` holds values, ``narrow`` the float formats that NumPy lacks. Imports torch and triton:
worker-side only.
"""
