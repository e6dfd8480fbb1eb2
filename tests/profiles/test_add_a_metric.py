"""A metric more is one line of METRICS: ncu is asked for its counter, and the value is in the run, shown and exported."""

import json
from pathlib import Path

import pandas as pd
from tilescope import cli
from tilescope.collectors.ncu import counters
from tilescope.hardware import device
from tilescope.runs.store import RunWriter
from tilescope.table import metrics, units
from tilescope.table.case import Case
from tilescope.table.run import Run

NEW = metrics.Metric(
    "warp_instructions", "warp instructions issued", "count", metrics.of_counter("smsp__inst_issued.sum")
)
CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
#: ncu's page of four launches, with every counter that it has.
PAGE = Path(__file__).parent / "fixtures" / "raw_full_h200.csv.gz"


def test_a_line_adds_a_metric(tmp_path, monkeypatch, capsys):
    assert "smsp__inst_issued.sum" not in counters.counters("9.0")
    monkeypatch.setitem(metrics.METRICS, NEW.name, NEW)
    assert "smsp__inst_issued.sum" in counters.counters("9.0")
    run = Run("20260102-030405-aaaa", "2026-01-02T03:04:05+00:00", device.for_target("sm_90"), {}, {}, {})
    writer = RunWriter(tmp_path, run)
    writer.append(counters.parse(PAGE, CASE))
    folder = writer.finish()

    assert cli.main(["show", str(folder), "--json"]) == 0
    shown = [row for row in json.loads(capsys.readouterr().out)["table"] if row["metric"] == NEW.name]
    assert [row["launch"] for row in shown] == [0, 1, 2, 3]
    assert {(row["unit"], row["source"]) for row in shown} == {("count", "ncu")}
    assert units.text(shown[0]["value"], shown[0]["unit"]) == f"{shown[0]['value']:,.0f}" != "0"
    for ending, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        assert cli.main(["report", str(folder), "-o", str(tmp_path / f"run{ending}")]) == 0
        exported = read(tmp_path / f"run{ending}")
        assert exported.loc[exported["metric"] == NEW.name, "value"].tolist() == [row["value"] for row in shown]
