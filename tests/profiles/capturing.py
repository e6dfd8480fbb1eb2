"""Captures cases in other processes: the interpreter patches Triton, which no test process should live with.

They are forked from one that has imported PyTorch and Triton, which takes longer than most captures.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tilescope.table.case import Case

HERE = Path(__file__).parent
ROOTS = [str(HERE.parents[1] / root) for root in ("kernels", "profiles")]


def small(name: str, workload: str, impl: str = "triton", direction: str = "forward", config: str = "") -> Case:
    """A case of one of the kernels in ``small_kernels.py``."""
    return Case(f"{HERE / 'small_kernels.py'}:{name}", impl, direction, workload, config)


def capture(collector: str, cases: list[Case], **settings: Any) -> dict[str, dict[str, Any]]:
    """What came of each case, by id: ``rows`` and ``artefact``, or ``error`` and ``message``."""
    host = _host()
    assert host.stdin and host.stdout
    with tempfile.NamedTemporaryFile("r") as log:
        job = {
            "collector": collector,
            "settings": settings,
            "cases": [case.to_json() for case in cases],
            "environment": {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            "log": log.name,
        }
        print(json.dumps(job), file=host.stdin, flush=True)
        answers = []
        while "status" not in (answer := json.loads(host.stdout.readline())):
            answers.append(answer)
        assert answer["status"] == 0, log.read()
    return {answer["case"]: answer for answer in answers}


@functools.cache
def _host() -> subprocess.Popen[str]:
    """The process that forks for each job, until this one ends."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, str(HERE / "capture_many.py")]
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(host.communicate)
    return host


def figures(answer: dict[str, Any], launch: int | None = 0) -> dict[str, float]:
    """The metrics of one launch, or of the whole case (None)."""
    assert "rows" in answer, answer
    rows = answer["rows"]
    return {
        metric: value
        for metric, value, at in zip(rows["metric"], rows["value"], rows["launch"], strict=True)
        if (at == launch if launch is not None else at in (None, "<NA>"))
    }
