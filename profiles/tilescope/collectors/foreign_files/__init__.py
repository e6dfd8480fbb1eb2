"""Reads other tools' files as runs. Each format is a module with an entry in ``formats.FORMATS``. The module has

``NAME``
    The format's name in lists.
``reads(head, name) -> bool``
    Whether a file called ``name`` that begins with the bytes ``head`` (unpacked, at most ``formats.HEAD``) may have this format.
``read(path) -> Contents``
    The file's content. A value that the file does not state has no row. Raises Unreadable, with one line.

Imports neither torch nor triton.
"""
