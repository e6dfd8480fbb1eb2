"""Run as a program: captures cases as a worker would, each job in a process that is forked for it.

A job is ``{"collector", "settings", "cases": [...]}``; each case's answer is a JSON line with its table, artefact or error. A job
``{"constructs": [...]}`` interprets these modules of ``language``.
"""

import gzip
import json
import tempfile
from pathlib import Path

from tilescope import collectors
from tilescope.execution import execute, multiprocess
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import interpret
from tilescope.table import schema
from tilescope.table.case import Case

from tests.forking import serve
from tests.profiles import interpreting


def work(job):
    if "constructs" in job:
        interpreting.interpret(job["constructs"])
        return
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
            except NotApplicable as error:
                answer = {"error": "NotApplicable", "message": str(error)}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps({"case": case.id, **answer}, default=str), flush=True)


if __name__ == "__main__":
    serve(work)
