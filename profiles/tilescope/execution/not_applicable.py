"""Cases that a collector cannot handle, such as those that need a GPU. Standard library only: the interpreter depends on little."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilescope.table.case import Case

_COMPILED = "torch.compile generates its kernels on a GPU only"


class NotApplicable(Exception):
    """A case that the collector cannot handle. It is skipped with this message and does not count as failed.

    It is ``limited`` where only a limit of the job left it out: ``resume`` takes it up with a higher one.
    """

    limited = False


@contextlib.contextmanager
def without_gpu(case: Case) -> Iterator[None]:
    """Raises NotApplicable for a case that torch.compile has to generate, and in place of errors of operators that need a GPU or data."""
    if case.impl == "compile":
        raise NotApplicable(_COMPILED)
    try:
        yield
    except RuntimeError as error:
        if "torch.compile with fullgraph=True" in str(error):
            raise NotApplicable(_COMPILED) from None
        if reason := _reason(str(error)):
            raise NotApplicable(f"{case.impl} {reason}") from None
        raise


def _reason(said: str) -> str:
    """What cannot be done here, from PyTorch's error; empty for another error."""
    if operator := re.search(r"'([\w:.]+)' with arguments from the 'CPU' backend|No viable backend for (\w+)", said):
        return f"calls {operator[1] or operator[2]}, which runs on a GPU only"
    if "cannot be called on meta tensors" in said or "Cannot copy out of meta tensor" in said:
        return "reads a tensor's value, which needs data"
    # PyTorch's own operators say so where their outputs' shapes depend on what is in the inputs.
    operator = re.search(r"(aten::\w+).*(?:Meta tensors|'Meta' backend)", said, re.IGNORECASE)
    return f"calls {operator[1]}, which needs data" if operator else ""
