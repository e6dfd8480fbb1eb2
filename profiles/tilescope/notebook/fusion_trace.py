"""Counts a person's own PyTorch function as a chain of operations, on meta tensors: no data, no GPU, any size.

The function runs in a worker process, the only one that imports torch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilescope_kernels.spec import DTYPES

from tilescope.models.fusion import Chain, Problem, parse_problem
from tilescope.notebook import user_kernel

#: The longest time in seconds to count a function, most of which is torch's import.
TIMEOUT = 120.0
#: Names of parameters that get one row; others get the whole shape.
_ROW_NAMES = ("weight", "bias", "gamma", "beta")
#: Operators that need a whole row at once, and operators that are compute-bound.
_WHOLE_ROW = re.compile(r"_?(log_)?softmax|.*norm|sum|mean|amax|amin|max|min|var(_mean)?|std|cumsum|logsumexp|prod")
_PRODUCTS = re.compile(r"(add|b|baddb)?mm|convolution|.*attention.*|dot|mv|addmv")


def trace(place: str, shape: str) -> Chain:
    """The chain that ``path/to/file.py:function`` runs on tensors of ``shape``, counted in a worker.

    Every parameter without a default gets a tensor of that shape (one row of it if it is called ``weight``, ``bias``,
    ``gamma`` or ``beta``). Raises ValueError, in one line, for a function that is not there or cannot be counted.
    """
    from tilescope.jobs import questions  # noqa: PLC0415 - takes a while to import, and a chain by names needs no worker

    parse_problem(shape)
    job = {"action": f"{serve.__module__}.serve", "place": place, "shape": shape}
    counted = asyncio.run(questions.ask(job, "chain", TIMEOUT))["chain"]
    return Chain(**{**counted, "names": tuple(counted["names"])})


def serve(job: Mapping[str, Any], emit: Callable[[Mapping[str, Any]], None]) -> int:
    """The worker's action: tells the chain of ``job``. Returns the exit status."""
    sys.path.insert(0, str(Path.cwd()))
    emit({"event": "chain", "chain": dataclasses.asdict(count(job["place"], parse_problem(job["shape"])))})
    return 0


def count(place: str, problem: Problem) -> Chain:
    """The same in this process; imports torch. Raises ValueError for a function that cannot be counted."""
    import torch  # noqa: PLC0415 - only this module's own process may import torch

    from tilescope.execution import pytorch_traffic  # noqa: PLC0415 - brings torch along

    function = _function(place)
    dtype = getattr(torch, DTYPES[problem.dtype][0])
    tensors = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            shape = problem.shape[-1:] if parameter.name in _ROW_NAMES else problem.shape
            tensors.append(torch.empty(shape, dtype=dtype, device="meta"))
    operations: list[pytorch_traffic.Operation] = []
    try:
        with pytorch_traffic.CountOperators(operations.append, values=False):
            result = function(*tensors)
    except pytorch_traffic.NeedsData as error:
        raise ValueError(f"{place} cannot be counted: {error}, and there is no data here") from error
    names = tuple(operation.name.removeprefix("aten.") for operation in operations)
    product = next((name for name in names if _PRODUCTS.fullmatch(name)), None)
    if product:
        raise ValueError(f"{place} runs {product}, which is no pass over memory: ask about what comes after it")
    if not names:
        raise ValueError(f"{place} moves no data: it only views its arguments")
    whole_row = any(_WHOLE_ROW.fullmatch(name) for name in names)
    return Chain(
        names,
        unfused_bytes=sum(operation.bytes_read + operation.bytes_written for operation in operations),
        fused_bytes=sum(tensor.nbytes for tensor in (*tensors, *user_kernel.tensors(result))),
        whole_row=whole_row,
        aligned_rows=whole_row or any(tensor.shape != problem.shape for tensor in tensors),
    )


def _function(place: str) -> Any:
    file, _, name = place.rpartition(":")
    if not Path(file).is_file():
        raise ValueError(f"{file or place} is no file: name a function as path/to/file.py:function")
    found = runpy.run_path(file).get(name)
    if not callable(found):
        raise ValueError(f"{file} has no function {name!r}")
    return found
