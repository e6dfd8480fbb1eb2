"""Captures cases in other processes: the interpreter patches Triton, which no test process should live with.

They are forked from one that has imported PyTorch and Triton.
"""

import functools
import os
import sys
from pathlib import Path

from tilescope.table.case import Case

from tests.forking import Host

HERE = Path(__file__).parent
ROOTS = [str(HERE.parents[1] / root) for root in ("", "kernels", "profiles")]


def small(name, workload, impl="triton", direction="forward", config=""):
    """A case of one of the kernels in ``small_kernels.py``."""
    return Case(f"{HERE / 'small_kernels.py'}:{name}", impl, direction, workload, config)


def capture(collector, cases, **settings):
    """What came of each case, by id: ``rows`` and ``artefact``, or ``error`` and ``message``.

    Unless the settings say otherwise a case may take as long as on a busy machine.
    """
    settings = {"check_limit": 200, "interpreter_limit": 200, **settings}
    job = {"collector": collector, "settings": settings, "cases": [case.to_json() for case in cases]}
    answers = _host().ask(job, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return {answer["case"]: answer for answer in answers}


@functools.cache
def constructs(*modules):
    """What came of each construct of modules of ``language``, by name (see ``interpreting.interpret``)."""
    answers = _host().ask({"constructs": modules}, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return {answer["name"]: answer for answer in answers}


@functools.cache
def _host():
    path = os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    return Host([sys.executable, str(HERE / "capture_many.py")], environment)


def figures(answer, launch=0):
    """The metrics of one launch, or of the whole case (None)."""
    assert "rows" in answer, answer
    rows = answer["rows"]
    return {
        metric: value
        for metric, value, at in zip(rows["metric"], rows["value"], rows["launch"], strict=True)
        if (at == launch if launch is not None else at in (None, "<NA>"))
    }
