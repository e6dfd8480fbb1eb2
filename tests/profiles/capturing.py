"""Captures cases in a subprocess: the interpreter patches Triton, which no test process should live with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    job = {"collector": collector, "settings": settings, "cases": [case.to_json() for case in cases]}
    done = subprocess.run(
        [sys.executable, str(HERE / "capture_many.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")]),
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    assert done.returncode == 0, done.stderr
    return {answer["case"]: answer for answer in map(json.loads, done.stdout.splitlines())}


def figures(answer: dict[str, Any], launch: int | None = 0) -> dict[str, float]:
    """The metrics of one launch, or of the whole case (None)."""
    assert "rows" in answer, answer
    rows = answer["rows"]
    return {
        metric: value
        for metric, value, at in zip(rows["metric"], rows["value"], rows["launch"], strict=True)
        if (at == launch if launch is not None else at in (None, "<NA>"))
    }
