"""The JSON of ``advise``, ``compare`` and ``show``: each document follows its schema, which refuses others."""

import json
import shutil

import pytest
from tilescope import cli
from tilescope.models import documents, json_documents
from tilescope.runs import store

from tests.recorded import recorded

from . import made_up

#: A kernel by every collector, and a sweep.
NORMS, SWEEP = recorded("layer_norm"), recorded("norms: autotune sweeps")


def printed(capsys, *arguments):
    assert cli.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def check(document, name):
    import jsonschema  # takes four seconds where all of its formats are installed, which not every process of a run has to

    schema = json_documents.schema(name)
    assert schema["$id"] == f"tilescope/{document['schema']}/{document['version']}"
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("name", documents.TYPES)
def test_schema_is_printed_and_requires_every_field(name, capsys):
    import jsonschema

    assert cli.main(["show", "--schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].startswith(f"tilescope/{name}/")
    for part in (schema, *schema["$defs"].values()):
        assert set(part["required"]) == set(part["properties"])


def test_unknown_schema_is_refused(capsys):
    assert cli.main(["show", "--schema", "advise"]) == 2
    assert "did you mean 'advice'?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--workload", "all", "--impl", "eager"]])
def test_advice(arguments, capsys):
    document = printed(capsys, "advise", NORMS, *arguments)
    check(document, "advice")
    named = [
        tuple(case[part] for part in ("kernel", "impl", "pass", "workload", "config")) for case in document["cases"]
    ]
    assert document["run"]["id"] == NORMS and len(set(named)) == len(named) > 1
    found = [tuple(f[part] for part in ("kernel", "impl", "pass", "workload", "config")) for f in document["findings"]]
    assert found and set(found) <= set(named)
    assert not any(case["impossible"] for case in document["cases"])


def test_json_keeps_every_digit(capsys):
    run = store.open_run(store.find(NORMS))
    shown = printed(capsys, "show", NORMS)["table"]
    assert [row["value"] for row in shown] == run.table["value"].tolist()


def test_a_comparison(capsys):
    document = printed(capsys, "compare", f"{NORMS}:triton", f"{NORMS}:eager", f"{NORMS}:compile")
    check(document, "comparison")
    assert [one["candidate"]["impl"] for one in document["comparisons"]] == ["eager", "compile"]
    first = document["comparisons"][0]["cases"][0]
    assert first["verdict"] == "slower" and first["speedup_low"] <= first["speedup"] <= first["speedup_high"] < 1
    assert first["speedup"] == pytest.approx(first["baseline_time"] / first["time"])


def test_a_run_and_the_list_of_runs(capsys):
    document = printed(capsys, "show", SWEEP)
    assert document["run"]["id"] == SWEEP and len(document["table"]) > 100
    check({**document, "table": document["table"][::50]}, "run")
    listed = printed(capsys, "show")
    check(listed, "runs")
    assert {NORMS, SWEEP} <= {run["id"] for run in listed["runs"]}


def test_run_without_later_fields_follows_the_schema(tmp_path, capsys):
    folder = tmp_path / NORMS
    shutil.copytree(store.find(NORMS), folder)
    written = json.loads((folder / "run.json").read_text())
    older = {"collector": "ncu", "message": "too slow", "cases": []}
    roofs = [{"name": "hbm", "value": 4e12, "unit": "byte/second", "origin": "measured"}]
    made_up.redescribe(folder, skipped=[older], device={**written["device"], "ceilings": roofs})
    document = printed(capsys, "show", str(folder))
    assert document["run"]["skipped"] == [{**older, "limited": False}]
    check({**document, "table": document["table"][::50]}, "run")
