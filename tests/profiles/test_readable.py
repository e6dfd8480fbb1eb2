"""Whatever a job writes can be read: a run with odd sizes, texts and numbers keeps its good cases."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tilescope.commands import running
from tilescope.jobs.job import Job
from tilescope.jobs.ledger import Ledger
from tilescope.models import json_documents, text_table
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure

from . import made_up

GOOD, ODD = (Case("/a/own.py:SPEC", "triton", "forward", workload) for workload in ("8-fp32", "99-fp32"))
#: Any text, with halves of characters, nulls, escapes and what turns the direction of writing.
TEXTS = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["\0", "\ud800", "\x1b[31m\u202e", "=1+1", "x" * 100_000]
)
INTEGERS = st.integers() | st.sampled_from([0, 2**63, -(2**64), 10**25, 10**80])
NUMBERS = INTEGERS | st.floats()
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    return {"deeper": nested(depth - 1)} if depth else 7


def written(folder: Path, costs: dict[str, Any], sizes: dict[str, Any], **facts: Any) -> Ledger:
    """The ledger of a job whose second case is odd."""
    entry = {
        "kernel": GOOD.kernel, "name": "own", "path": "/nowhere/own.py", "sha256": "",
        "cost": {GOOD.workload: {"forward": {"flops": 8, "bytes_read": 32, "bytes_written": 32}}, ODD.workload: {"forward": costs}},
        "implementations": {"triton": {"requires": []}},
    }  # fmt: skip
    declared = {"cost": entry["cost"], "workloads": [{"id": ODD.workload, **sizes}]}
    about = made_up.run(store.new_id(), {"own.py": declared}, **facts)
    job = Job([GOOD, ODD], ["compiler"], about.settings, folder, catalog=[entry])
    ledger = Ledger(job, store.RunWriter(folder, about), lambda event: None)
    ledger.writer.plan(job.cases)
    row = GOOD.row("registers", 32, "compiler", launch=0, function="k")
    ledger.writer.append(schema.frame([row]), "compiler", GOOD)
    return ledger


#: What may be odd about a job.
ODDITIES = st.fixed_dictionaries({
    **dict.fromkeys(["title", "note", "message", "detail", "function"], TEXTS),
    "costs": st.dictionaries(st.sampled_from(["flops", "bytes_read", "bytes_written"]), NUMBERS),
    "sizes": st.fixed_dictionaries({"elements": INTEGERS, "dims": st.dictionaries(TEXTS, INTEGERS, max_size=3), "label": TEXTS}),
    "answers": st.dictionaries(TEXTS, ANYTHING, max_size=4),
    "other": ANYTHING,
})  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd=ODDITIES)
def test_run_of_a_job_is_readable(capsys: pytest.CaptureFixture[str], odd: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chosen = {
            "target": "sm_90", "assumed": {"capture": {"answers": odd["answers"]}}, "of_a_collector": odd["other"],
        }  # fmt: skip
        ledger = written(
            Path(folder), odd["costs"], odd["sizes"], title=odd["title"], notes=(odd["note"],), settings=chosen
        )
        function = odd["function"].encode(errors="replace").decode()
        ledger.writer.append(schema.frame([GOOD.row("barriers", 0, "compiler", launch=0, function=function)]))
        ledger.fail(ODD, "compiler", odd["message"], odd["detail"])
        ledger.skip(ODD, "check", odd["message"])
        ledger.leave("ncu", odd["note"], odd["detail"])
        loaded = store.open_run(ledger.close())
        assert loaded.table.loc[loaded.table["metric"] == "registers", "value"].tolist() == [32]
        assert running.show(loaded, interrupted=False) == 1
        document = json_documents.text(json_documents.run(loaded))
        for shown in (document, text_table.text(loaded), made_up.html(Profile.of(loaded))):
            assert "own.py" in shown
        assert [line.error for line in store.list_runs([Path(folder)])] == [""]
        capsys.readouterr()


def test_run_with_many_long_failures_is_readable(tmp_path: Path) -> None:
    ledger = written(tmp_path, {}, {}, settings={"target": "sm_90"})
    ledger.writer.update(
        failures=tuple(Failure(f"{ODD.id}{n}", "compiler", "no", "x" * (64 << 10)) for n in range(1000))
    )
    run = store.open_run(ledger.close()).run
    assert len(run.failures) == 1000 and run.failures[0].detail and not run.failures[-1].detail
    assert {failure.message for failure in run.failures} == {"no"}


@pytest.mark.parametrize(("facts", "said"), [
    ({"settings": {"repetitions": 7.5}}, "settings.repetitions is a number, not a whole number"),
    ({"settings": {"collectors": ["../../x"]}}, "cannot be a collector's name"),
    ({"kernels": {"k" * 5000: {}}}, "a name or title of more than 4096 characters"),
])  # fmt: skip
def test_run_that_could_not_be_read_is_not_begun(tmp_path: Path, facts: dict[str, Any], said: str) -> None:
    with pytest.raises(store.StoreError, match=said):
        store.RunWriter(tmp_path, made_up.run(**facts))
    assert not list(tmp_path.iterdir())


def test_description_is_written_within_the_limits(tmp_path: Path) -> None:
    facts = {
        "settings": {"deep": nested(100), "far": float("inf"), "near": 1e-300, "big": 2**70},
        "title": "t" * 30_000,
    }
    run = store.open_run(store.RunWriter(tmp_path, made_up.run(**facts)).finish()).run
    assert len(run.title) == 20_000 and run.title.endswith("…")
    assert "far" not in run.settings and "near" not in run.settings and run.settings["big"] == 2.0**70
