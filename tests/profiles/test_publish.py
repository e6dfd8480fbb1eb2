"""Publishing a run as a recording."""

import dataclasses

import pytest
from tilescope.cli import main
from tilescope.runs import function_digests, store
from tilescope.runs.publish import finished, publish
from tilescope.runs.store import RunWriter, StoreError
from tilescope.table import line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import Failure, Skipped

from . import made_up

SOFTMAX, MATMUL = Case("softmax", "triton", "forward", "8x8-fp32"), Case("matmul", "triton", "forward", "8x8x8-bf16")
LARGER = dataclasses.replace(SOFTMAX, workload="16x8-fp32")


def row(case, source="events", metric="interval"):
    return case.row(metric, 1e-6, source)


@pytest.fixture
def written(tmp_path):
    def write(*rows, complete=True):
        sizes = [{"id": SOFTMAX.workload, "label": "small"}, {"id": LARGER.workload, "label": "large"}]
        facts = {
            "softmax": {"file": "", "workloads": sizes},
            "matmul": {"file": "", "workloads": [{"id": MATMUL.workload, "label": ""}]},
        }
        writer = RunWriter(tmp_path, made_up.run(kernels=facts))
        writer.append(schema.frame(rows))
        writer.artefact_path("ncu", SOFTMAX, ".csv").write_text("long")
        for case in (SOFTMAX, MATMUL):
            writer.fail(Failure(case.id, "ncu", "no", "Traceback in /home/someone"))
        writer.update(
            skipped=(Skipped("check", "too long", (SOFTMAX, MATMUL)), Skipped("check", "too large", (SOFTMAX,)))
        )
        return store.open_run(writer.finish(complete))

    return write


def test_a_whole_run_without_artefacts_or_tracebacks(written, tmp_path):
    folder = publish(written(row(SOFTMAX), row(MATMUL)), tmp_path / "kept", title="kept")
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "table.parquet"]
    loaded = store.open_run(folder)
    assert loaded.run.title == "kept"
    assert loaded.run.complete
    assert [failure.detail for failure in loaded.run.failures] == ["", ""]
    assert len(loaded.table) == 2


def test_some_kernels(written, tmp_path):
    loaded = store.open_run(publish(written(row(SOFTMAX), row(MATMUL)), tmp_path / "kept", ["matmul"]))
    assert list(loaded.run.kernels) == list(loaded.table["kernel"]) == ["matmul"]
    assert [failure.case for failure in loaded.run.failures] == [MATMUL.id]
    assert loaded.run.skipped == (Skipped("check", "too long", (MATMUL,)),)


def test_publishing_again_replaces(written, tmp_path):
    run = written(row(SOFTMAX), row(MATMUL))
    publish(run, tmp_path / "kept")
    folder = publish(run, tmp_path / "kept", ["softmax"])
    assert set(store.open_run(folder).table["kernel"]) == {"softmax"}
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [folder.name]


def test_the_whole_kernels_of_an_interrupted_run(written, tmp_path):
    model = [row(case, "model", "algorithm_flops") for case in (SOFTMAX, LARGER, MATMUL)]
    run = written(*model, row(SOFTMAX), row(MATMUL), complete=False)
    with pytest.raises(StoreError, match="interrupted amid softmax: publish its other kernels"):
        publish(run, tmp_path / "kept")
    assert store.open_run(publish(run, tmp_path / "kept", ["matmul"])).run.complete


def test_the_finished_workloads_of_an_interrupted_run(written, tmp_path):
    model = [row(case, "model", "algorithm_flops") for case in (SOFTMAX, LARGER, MATMUL)]
    run = written(*model, row(SOFTMAX), row(MATMUL), complete=False)
    for asked in (["small", MATMUL.workload], [SOFTMAX.workload, MATMUL.workload]):
        loaded = store.open_run(publish(run, tmp_path / "kept", workloads=asked))
        assert set(loaded.table["workload"]) == {SOFTMAX.workload, MATMUL.workload}
        assert {failure.case for failure in loaded.run.failures} == {SOFTMAX.id, MATMUL.id}
        assert [one.cases for one in loaded.run.skipped] == [(SOFTMAX, MATMUL), (SOFTMAX,)]
    loaded = store.open_run(publish(run, tmp_path / "kept", workloads=[MATMUL.workload]))
    assert [failure.case for failure in loaded.run.failures] == [MATMUL.id]
    assert [one.cases for one in loaded.run.skipped] == [(MATMUL,)]
    with pytest.raises(StoreError, match="amid softmax"):
        publish(run, tmp_path / "kept", workloads=["large", "small"])
    with pytest.raises(StoreError, match="did you mean 'large'"):
        publish(run, tmp_path / "kept", workloads=["larg"])


def test_an_interrupted_run_is_published_without_the_cases_that_were_not_finished(written, tmp_path):
    model = [row(case, "model", "algorithm_flops") for case in (SOFTMAX, LARGER, MATMUL)]
    run = written(*model, row(SOFTMAX), row(LARGER), row(LARGER, "compiler", "registers"), row(MATMUL), complete=False)
    whole = finished(run)
    assert set(whole.table["workload"]) == {LARGER.workload, MATMUL.workload}
    assert whole.run.notes[-1] == "interrupted: 1 of 3 cases were not finished and are left out"
    loaded = store.open_run(publish(whole, tmp_path / "kept"))
    assert loaded.run.complete and set(loaded.run.kernels) == {"softmax", "matmul"}
    # A case that failed is finished: its failure says so.
    tried = dataclasses.replace(run.run, failures=(Failure(SOFTMAX.id, "compiler", "no"),))
    assert len(finished(dataclasses.replace(run, run=tried)).table) == len(run.table)


def test_nothing_is_published_where_nothing_is_finished(written):
    run = written(row(SOFTMAX), row(LARGER, "compiler", "registers"), complete=False)
    with pytest.raises(StoreError, match="before a case was finished"):
        finished(run)


def test_source_lines_of_the_workloads_that_are_kept(written, tmp_path):
    run = written(row(SOFTMAX), row(LARGER))
    known = {"launch": 0, "function": "f", "file": "f.py", "line": 1, "metric": "sass_instructions", "value": 2.0}
    by_line = [{**case.row("sass_instructions", 2.0, "compiler"), **known} for case in (SOFTMAX, LARGER)]
    line_values.frame(by_line).to_parquet(run.folder / store.LINES)
    assert set(store.open_run(publish(run, tmp_path / "all")).lines["workload"]) == {SOFTMAX.workload, LARGER.workload}
    assert set(store.open_run(publish(run, tmp_path / "kept", workloads=["small"])).lines["workload"]) == {
        SOFTMAX.workload
    }


def test_a_kernel_that_the_run_lacks(written, tmp_path):
    with pytest.raises(StoreError, match="did you mean 'matmul'"):
        publish(written(row(SOFTMAX)), tmp_path / "kept", ["matmull"])


def test_a_recording_made_anew_replaces_the_old_one_of_its_title(written, tmp_path):
    run = written(row(SOFTMAX))
    first = publish(run, tmp_path / "kept", title="norms")
    old = first.rename(first.with_name("20260101-000000-aaaa"))
    other = publish(run, tmp_path / "kept", title="losses")
    other.rename(other.with_name("20260101-000000-bbbb"))
    arguments = ["publish", str(run.folder), "--into", str(tmp_path / "kept"), "--title", "norms", "--replace"]
    assert main(arguments) == 0
    assert not old.exists()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "20260101-000000-bbbb",
        "20261120-221530-3fa9",
    ]


def test_published_run_keeps_digests_of_launched_functions(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import triton\n@triton.jit\ndef a_kernel(x): return x\n@triton.jit\ndef other_kernel(x): return -x\n"
    )
    facts = {"softmax": {"file": str(own), "functions": {"a_kernel": "1", "other_kernel": "2"}}}
    for number, (kernels, digest) in enumerate(((facts, "1"), ({"softmax": {"file": str(own)}}, None))):
        writer = RunWriter(tmp_path / "runs", made_up.run(f"20260102-030405-000{number}", kernels=kernels))
        writer.append(schema.frame([SOFTMAX.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="a_kernel")]))
        # An older run kept texts alone.
        writer.keep_sources({"softmax": {"own.py": own.read_text()}})
        published = store.open_run(publish(store.open_run(writer.finish()), tmp_path / "kept"))
        kept = published.run.kernels["softmax"]["functions"]
        assert kept == {"a_kernel": digest or function_digests.of(own)["a_kernel"]}
