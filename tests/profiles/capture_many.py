"""Run as a program: captures cases as a worker would, each job in a process that is forked for it.

Reads a job a line, ``{"collector", "settings", "cases": [...], "environment", "log"}``; writes one JSON line a case with its
table, artefact or error, and one with the exit status of the job's process. What that prints as errors goes to the file ``log``.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.execution import execute, multiprocess
from tilescope.interpreter import interpret
from tilescope.table import schema
from tilescope.table.case import Case


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(forked(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def forked(job: dict[str, Any]) -> int:
    """Does the job in a process that has just been forked. Returns the exit status."""
    with Path(job["log"]).open("w") as log:
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    try:
        work(job)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def work(job: dict[str, Any]) -> None:
    if "share" in job["settings"]:
        interpret.WORTH_SHARING = 0.1
        multiprocess.processors = lambda: job["settings"]["share"]
    collector = collectors.load(job["collector"])
    with tempfile.TemporaryDirectory() as folder:
        for data in job["cases"]:
            case = Case(**data)
            artefact = Path(folder, "artefact" + collector.SUFFIX)
            told: list[str] = []
            try:
                collector.capture(
                    case, execute.load_spec(case.kernel), artefact, {**job["settings"], "progress": told.append}
                )
                table = schema.validate(collector.parse(artefact, case))
                content = artefact.read_bytes()
                raw = gzip.decompress(content) if artefact.suffix == ".gz" else content
                answer = {"rows": table.to_dict("list"), "artefact": json.loads(raw), "told": len(told)}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps({"case": case.id, **answer}, default=str), flush=True)


if __name__ == "__main__":
    main()
