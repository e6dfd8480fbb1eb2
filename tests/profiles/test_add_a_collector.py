"""A collector more: a module and a line of ``table/sources.py``, or a module alone that is named by its dotted path."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tilescope
from tilescope import collectors

from .fake_jobs import OWN

PACKAGE = Path(tilescope.__file__).parent
MODULE = '''"""How long the CPU takes for a call, by its own clock."""

import json
import time

from tilescope.table import schema

SUFFIX = ".json"


def unavailable():
    return None


def capture(case, spec, out, settings):
    call, given = spec.implementations[case.impl].call, spec.inputs(spec.workload(case.workload), "cpu")
    begin = time.perf_counter()
    call(**given)
    out.write_text(json.dumps(time.perf_counter() - begin))


def parse(artefact, case):
    return schema.frame([case.row("interval", json.loads(artefact.read_text()), "SOURCE")])
'''
LINE = '    Collector("stopwatch", "stopping the time", "time on the CPU", measured=True),\n'
JOB = """
import json, sys, tilescope
from tilescope.hardware import device
from tilescope.table.sources import MEASURED
from tilescope.table.case_table import gather
device.detect = lambda: None
said = []
run = tilescope.profile_kernels(
    sys.argv[1], implementations=["good"], workloads=["small"], collectors=[sys.argv[2]], runs_dir=sys.argv[3], on_event=said.append
)
rows = run.table[run.table["metric"] == "interval"]
(case,) = gather(run.table)
print(json.dumps({
    "home": tilescope.__file__, "rows": rows[["value", "source"]].values.tolist(), "known": case.total("interval"),
    "doing": [event["doing"] for event in said if "doing" in event], "measured": "stopwatch" in MEASURED,
    "failures": [failure.message for failure in run.run.failures],
}))
"""


def run(root, collector, *folders):
    """What a job of that collector finds, by the package below ``root``; torch's stand-in is enough for it."""
    light = Path(__file__).parent / "fixtures" / "light"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (light, root, *folders)))}
    done = subprocess.run(
        [sys.executable, "-c", JOB, OWN, collector, str(root / "runs")],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_module_and_a_line_add_a_collector(tmp_path):
    copy = tmp_path / "tilescope"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "collectors" / "stopwatch.py").write_text(MODULE.replace("SOURCE", "stopwatch"))
    table = (copy / "table" / "sources.py").read_text()
    (copy / "table" / "sources.py").write_text(table.replace("COLLECTORS = (\n", f"COLLECTORS = (\n{LINE}", 1))
    found = run(tmp_path, "stopwatch")
    assert found["home"] == str(copy / "__init__.py") and not found["failures"]
    ((value, source),) = found["rows"]
    assert value > 0 and source == "stopwatch"
    assert found["known"] == [value, "stopwatch"] and found["measured"]
    assert "stopping the time" in found["doing"]


def test_a_module_alone_adds_a_collector_of_ones_own(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "stopwatch.py").write_text(MODULE.replace("SOURCE", "events"))
    found = run(tmp_path, "mine.stopwatch", PACKAGE.parent)
    assert not found["failures"]
    assert [source for _, source in found["rows"]] == ["events"]


def test_no_other_module_lists_the_collectors():
    """So that the line is one."""
    names = set(collectors.COLLECTORS)
    for path in PACKAGE.rglob("*.py"):
        if path.name != "sources.py":
            assert not all(f'"{name}"' in path.read_text() for name in names), path
