"""Runs on disk: whole, half-written and damaged."""

import pandas as pd
import pytest
from tilescope.runs import device_roofs, store
from tilescope.runs.store import RunWriter, StoreError
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure

from . import made_up

CASE = Case("softmax", "triton", "forward", "8x8-fp32")


pytestmark = pytest.mark.usefixtures("runs")


def a_run(name="20261120-221530-3fa9", **fields):
    facts = {"softmax": {"file": "tilescope_kernels/spec.py", "sha256": ""}}
    return made_up.run(name, facts, **{"versions": {"torch": "2"}, "title": "one", **fields})


def rows(*values):
    return schema.frame(
        CASE.row("registers", value, "compiler", launch=i, function="k") for i, value in enumerate(values)
    )


def written(folder, **fields):
    writer = RunWriter(folder, a_run(**fields))
    writer.append(rows(32, 40))
    return writer.finish()


def test_run_comes_back_as_written(runs):
    writer = RunWriter(runs, a_run())
    writer.append(rows(32))
    writer.append(rows())
    writer.append(rows(40))
    writer.fail(Failure(CASE.id, "ncu", "no"))
    writer.note("a remark")
    path = writer.artefact_path("compiler", CASE, ".json")
    path.write_text("{}")
    folder = writer.finish()
    assert sorted(path.name for path in folder.iterdir()) == ["artefacts", "run.json", "table.parquet"]
    assert [path.name for path in runs.iterdir()] == [writer.run.id]
    loaded = store.open_run(folder)
    expected = a_run(failures=(Failure(CASE.id, "ncu", "no"),), notes=("a remark",))
    assert loaded.run == device_roofs.settled(expected, store.recorded_dir())
    assert list(loaded.table["value"]) == [32, 40]
    assert set(loaded.table["run_id"]) == {"20261120-221530-3fa9"}
    assert dict(loaded.table.dtypes.astype(str)) == dict(schema.COLUMNS)


def test_rows_are_validated_and_on_disk_before_the_end(runs):
    writer = RunWriter(runs, a_run())
    with pytest.raises(schema.SchemaError):
        writer.append(rows(1).assign(source="guess"))
    writer.append(rows(32))
    (part,) = (writer.folder / "parts").iterdir()
    assert pd.read_parquet(part)["value"].tolist() == [32]
    writer.discard()
    assert list(runs.iterdir()) == []


def test_run_is_found_by_id_path_and_latest(runs, tmp_path):
    first = written(runs, name="20261120-000000-aaaa")
    second = written(runs, name="20261121-000000-bbbb")
    recorded = written(tmp_path / "recorded", name="h200")
    assert store.find("20261120-000000-aaaa") == first
    assert store.find("20261121") == second
    assert store.find("latest") == second
    assert store.find("h200") == recorded
    assert store.find(str(first)) == first
    with pytest.raises(StoreError, match="fits 2 runs"):
        store.find("2026")
    with pytest.raises(StoreError, match="did you mean '20261120-000000-aaaa'"):
        store.find("20261120-000000-aaab")
    with pytest.raises(StoreError, match="tilescope show"):
        store.find("nothing like it")
    with pytest.raises(StoreError, match="no run at"):
        store.find(str(tmp_path / "gone"))


def test_list_has_the_contents_of_runs(runs, tmp_path):
    written(tmp_path / "recorded", name="h200", started="2026-01-01T00:00:00+00:00")
    written(runs)
    (runs / "unrelated").mkdir()
    mine, recorded = store.list_runs()
    assert (mine.cases, mine.sources, mine.kernels, mine.recorded) == (1, ("compiler",), ("softmax",), False)
    assert recorded.recorded
    assert store.list_runs([tmp_path / "nowhere"]) == []


def test_where_runs_go(monkeypatch, tmp_path):
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path))
    assert store.runs_dir() == tmp_path
    monkeypatch.delenv("TILESCOPE_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(store.runs_dir()) == "/data/tilescope/runs"


def test_ids_sort_by_time():
    made = [store.new_id() for _ in range(200)]
    assert made == sorted(set(made))


def test_latest_of_runs_of_one_second(tmp_path):
    ids = [f"20231114-221320-{end}" for end in ("0001", "0002", "00ff")]
    for name in reversed(ids):
        written(tmp_path, name=name)
    assert store.find("latest", [tmp_path]).name == ids[-1]
    assert [found.id for found in store.list_runs([tmp_path])] == ids[::-1]


def test_address_finds_a_run_wherever_it_lies(runs, tmp_path):
    own, apart = written(runs), written(tmp_path / "apart", name="20261121-000000-cccc")
    assert store.address(own) == own.name
    assert [store.find(store.address(folder)) for folder in (own, apart)] == [own, apart]
