"""Other tools' files as runs: a module a format, and ``formats.FORMATS`` has a line for each.

A format's module has:

``NAME``
    What it is called where the known formats are listed.
``reads(head, name) -> bool``
    Whether a file that begins with the bytes ``head`` (unpacked, ``formats.HEAD`` of them at most) and is called ``name`` may
    be one.
``read(path) -> Contents``
    What the file says, and nothing else: what it does not say has no row. Raises Unreadable, in one line.

Imports neither torch nor triton.
"""
