"""PTX without what the GPU does not run: two codes with the same bare text are assembled to the same instructions. Pure text."""

from __future__ import annotations

import re

#: Sections of debug information.
_DEBUG = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{[^{}]*\}", re.MULTILINE)
#: Directives of source lines, and labels that only debug information refers to.
_LINES = re.compile(r"^\s*(?:\.(?:loc|file)\b.*|\$L__(?:tmp|func_begin|func_end|debug\w*)\d*:) *$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")
#: What a kernel's name is replaced by, and its parameters' prefix with it.
_NAME = "kernel"


def bare(ptx: str, name: str) -> str:
    """The PTX of the kernel ``name`` without its name, source lines, comments, debug information and indentation.

    Names of other functions, such as those that are not inlined, are kept. Text in quotes is kept where it has no ``//``.
    """
    code = _LINES.sub("", _COMMENT.sub("", _DEBUG.sub("", ptx)).replace("\t", " "))
    code = "\n".join(" ".join(line.split()) for line in code.splitlines() if line.strip())
    # Where else the name stands it is something else's: ``add`` is an instruction, too.
    return re.sub(rf"(?<![\w$.%]){re.escape(name)}(?=_param_\d+\b)|(?<=\.entry ){re.escape(name)}(?=\()", _NAME, code)
