"""Commands that collect what a run lacks, as a user types them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def command(kernel: str, declared: Mapping[str, Any], verb: str, *options: str) -> str:
    """``tilescope VERB KERNEL OPTIONS``, quoted for a shell but not for HTML. ``declared`` is the kernel's entry in ``Run.kernels``.

    A user's own kernel, which has an absolute path, is named by its file.
    """
    file = str(declared.get("file", ""))
    name = f"{file}:{declared.get('variable', kernel)}" if Path(file).is_absolute() else kernel or "softmax"
    return shlex.join(["tilescope", verb, name, *options])
