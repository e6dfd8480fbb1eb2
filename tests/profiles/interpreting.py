"""Interprets the constructs of ``language/*.py`` in the process that ``capturing`` captures cases in.

A construct is a function of no arguments, or a ``partial`` of one, that returns ``Launched``: what its kernel made of which inputs. It is
run with and without values.
"""

import contextlib
import dataclasses
import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

LANGUAGE = Path(__file__).parent / "language"


@dataclasses.dataclass(frozen=True)
class Launched:
    """``outputs`` should be ``expected``. Each of ``inputs`` is read once and each output written once.

    ``read`` and ``written`` are bytes where that is not so, ``flops`` is given where it is worth saying.
    """

    outputs: Sequence[torch.Tensor] | torch.Tensor
    expected: Sequence[torch.Tensor] | torch.Tensor
    inputs: Sequence[torch.Tensor] | torch.Tensor = ()
    read: int | None = None
    written: int | None = None
    flops: int | None = None
    tolerance: float = 1e-6


def constructs(module):
    """Names of the constructs in ``language/<module>.py``, without importing it."""
    text = (LANGUAGE / f"{module}.py").read_text()
    return re.findall(r"^(?:def )?([a-z]\w+)(?:\(\) -> Launched:| = partial\(.*\))$", text, re.MULTILINE)


def interpret(modules):
    """Prints what came of each construct, a line of JSON: ``problems`` (none: it is right), ``error``, ``counted`` without values."""
    from tilescope.interpreter import memory

    memory.PATIENCE = 1_000  # its own takes seconds
    for module, name in [(one, name) for one in modules for name in constructs(one)]:
        found = importlib.import_module(f".language.{module}", __package__)
        answer: dict[str, Any] = {"name": name, "problems": [], "error": None, "counted": None}
        with contextlib.suppress(Exception):
            answer["counted"] = _run(getattr(found, name), values=False)[1]
        try:
            answer["problems"] = _problems(getattr(found, name), answer["counted"])
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


def _problems(construct, without):
    """``without`` is what was counted without values, None where that failed."""
    from tilescope.interpreter.blocks import NeedsValues

    launched, counted = _run(construct, values=True)
    problems = []
    outputs, expected, inputs = (_list(x) for x in (launched.outputs, launched.expected, launched.inputs))
    for output, wanted in zip(outputs, expected, strict=True):
        difference = (output.double() - wanted.double()).abs().nan_to_num(0).max().item()
        if output.isnan().ne(wanted.isnan()).any() or difference > launched.tolerance * (1 + _largest(wanted)):
            problems.append(f"{output.flatten()[:8].tolist()} instead of {wanted.flatten()[:8].tolist()}")
    wants = {
        "requested_read": launched.read if launched.read is not None else sum(x.nbytes for x in inputs),
        "requested_written": launched.written if launched.written is not None else sum(x.nbytes for x in outputs),
    }
    if launched.flops is not None:
        wants["flops"] = launched.flops
    problems += [f"{name}: {counted[name]} instead of {want}" for name, want in wants.items() if counted[name] != want]
    if without is None:
        with contextlib.suppress(NeedsValues):
            _run(construct, values=False)
        return problems
    return problems + [
        f"{n} without values: {without[n]}, with {counted[n]}" for n in counted if without[n] != counted[n]
    ]


def _list(given):
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _largest(tensor):
    finite = tensor.double()[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _run(construct, *, values):
    from tilescope.execution import launches
    from tilescope.interpreter import interpret as interpreter

    counted = dict.fromkeys(("requested_read", "requested_written", "flops"), 0)

    def run(launch):
        meter = interpreter.meter(launch)
        interpreter.run(launch, meter=meter, values=values)
        for name in counted:
            counted[name] += meter.counts[name]

    torch.manual_seed(0)
    with launches.catch(run):
        return construct(), counted
