"""Publishing a run as a recording."""

import dataclasses
import gzip
import json
import lzma
import shutil

import pandas as pd
import pytest
from tilescope.cli import main
from tilescope.files import bounded_reading
from tilescope.runs import listings, parquet, recordings, steps, store
from tilescope.runs.publish import publish
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
        left_out = f"another config ran: {SOFTMAX.id}, {MATMUL.id}"
        of_softmax = ("softmax/triton 8x8-fp32: a remark", f"interpreter counted another kernel: {SOFTMAX.id}")
        for note in ("a note", left_out, *of_softmax, "check skipped 3 of triton: too long"):
            writer.note(note)
        for case in (SOFTMAX, MATMUL):
            writer.fail(Failure(case.id, "ncu", "no", "Traceback in /home/someone"))
        writer.update(
            skipped=(Skipped("check", "too long", (SOFTMAX, MATMUL)), Skipped("check", "too large", (SOFTMAX,)))
        )
        return store.open_run(writer.finish(complete))

    return write


def test_whole_run_without_artefacts_or_tracebacks(written, tmp_path):
    folder = publish(written(row(SOFTMAX), row(MATMUL)), tmp_path / "kept", title="kept")
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "table.parquet"]
    loaded = store.open_run(folder)
    assert loaded.run.title == "kept"
    assert loaded.run.complete
    assert [failure.detail for failure in loaded.run.failures] == ["", ""]
    assert len(loaded.table) == 2


def test_what_views_draw_is_published_if_it_is_whole(written, tmp_path):
    loaded, kept = written(row(SOFTMAX)), tmp_path / "kept"
    lanes = loaded.folder / "artefacts" / "lanes" / f"{SOFTMAX.slug}.trace.json.gz"
    lanes.parent.mkdir()
    lanes.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    shutil.copy(next(store.recorded_dir().glob("*/step.json.gz")), loaded.folder)
    published = publish(loaded, kept)
    assert steps.read(published).launches and (published / lanes.relative_to(loaded.folder)).is_file()
    for file in (loaded.folder / steps.STEP, lanes):
        before = file.read_bytes()
        file.write_bytes(before[:15])
        with pytest.raises(StoreError, match="damaged"):
            publish(loaded, kept)
        file.write_bytes(before)
    (tmp_path / "secret").write_text("{}")
    (loaded.folder / steps.STEP).unlink()
    (loaded.folder / steps.STEP).symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError):
        publish(loaded, kept)
    assert steps.read(published).launches, "the older copy stays"


def test_some_kernels(written, tmp_path):
    run = written(row(SOFTMAX), row(MATMUL))
    with pytest.raises(StoreError, match="did you mean 'matmul'"):
        publish(run, tmp_path / "kept", ["matmull"])
    loaded = store.open_run(publish(run, tmp_path / "kept", ["matmul"]))
    assert list(loaded.run.kernels) == list(loaded.table["kernel"]) == ["matmul"]
    assert [failure.case for failure in loaded.run.failures] == [MATMUL.id]
    assert loaded.run.skipped == (Skipped("check", "too long", (MATMUL,)),)
    left_out = f"another config ran: {SOFTMAX.id}, {MATMUL.id}"
    assert loaded.run.notes == ("a note", left_out, "check skipped 1 of triton: too long")


def test_publishing_again_replaces(written, tmp_path):
    run = written(row(SOFTMAX), row(MATMUL))
    publish(run, tmp_path / "kept")
    folder = publish(run, tmp_path / "kept", ["softmax"])
    assert set(store.open_run(folder).table["kernel"]) == {"softmax"}
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [folder.name]


def test_interrupted_run_publishes_what_is_whole(written, tmp_path):
    model = [row(case, "model", "algorithm_flops") for case in (SOFTMAX, LARGER, MATMUL)]
    run = written(*model, row(SOFTMAX), row(MATMUL), complete=False)
    with pytest.raises(StoreError, match="interrupted amid softmax: publish its other kernels"):
        publish(run, tmp_path / "kept")
    assert store.open_run(publish(run, tmp_path / "kept", ["matmul"])).run.complete
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


def test_source_lines_of_the_workloads_that_are_kept(written, tmp_path):
    run = written(row(SOFTMAX), row(LARGER))
    known = {"launch": 0, "function": "f", "file": "f.py", "line": 1, "metric": "sass_instructions", "value": 2.0}
    by_line = [{**case.row("sass_instructions", 2.0, "compiler"), **known} for case in (SOFTMAX, LARGER)]
    line_values.frame(by_line).to_parquet(run.folder / store.LINES)
    assert set(store.open_run(publish(run, tmp_path / "all")).lines["workload"]) == {SOFTMAX.workload, LARGER.workload}
    assert set(store.open_run(publish(run, tmp_path / "kept", workloads=["small"])).lines["workload"]) == {
        SOFTMAX.workload
    }


def test_replace_removes_runs_of_the_title(written, tmp_path):
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
    facts = {"softmax": {"file": "", "functions": {"a_kernel": "1", "other_kernel": "2"}}}
    rows = [SOFTMAX.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="a_kernel")]
    folder = made_up.written(tmp_path / "runs", rows, kernels=facts)
    published = store.open_run(publish(store.open_run(folder), tmp_path / "kept"))
    assert published.run.kernels["softmax"]["functions"] == {"a_kernel": "1"}


def test_packed_times_are_the_same_bits(tmp_path):
    values = [0.0, -0.0, 1.025e-6, 2848 / 1e9, 2848 / 1e3 * 1e-6, 1 / 3, -1.0888e-05, 5e6, 1e-30, 0.1 + 0.2]
    rows = [SOFTMAX.row(name, value, "events", sample=0) for value in values for name in ("interval", "tolerance")]
    frame = schema.frame(rows)
    parquet.pack(frame, tmp_path / "packed.parquet")
    back = parquet.read(tmp_path / "packed.parquet", schema.validate, schema.COLUMNS)
    pd.testing.assert_frame_equal(back, frame, check_exact=True)
    assert back["value"].to_numpy().tobytes() == frame["value"].to_numpy().tobytes()
    stored = pd.read_parquet(tmp_path / "packed.parquet")
    assert stored["nanoseconds"].notna().sum() == 5  # those of whole nanoseconds
    assert stored.loc[stored["metric"] == "tolerance", "value"].tolist() == values
    stored = stored.assign(sample=stored["sample"].astype("Int32"))
    stored.assign(nanoseconds=0.5, launch=stored["launch"].astype("Int32")).to_parquet(
        tmp_path / "damaged.parquet", index=False
    )
    with pytest.raises(bounded_reading.Unreadable, match="no whole nanoseconds"):
        parquet.read(tmp_path / "damaged.parquet", schema.validate, schema.COLUMNS)


def test_recordings_share_texts(written, tmp_path):
    for number in range(2):
        published = publish(written(row(SOFTMAX)), tmp_path / "kept")
        writer = RunWriter(
            tmp_path / "kept", dataclasses.replace(store.read_run(published), id=f"20260101-000000-aaa{number}")
        )
        writer.keep_sources({"softmax": {"own.py": "same", "other.py": str(number)}})
        shutil.rmtree(published)
        shutil.rmtree(tmp_path / published.name)
        before = writer.finish()
    size = (before / "sources.json.gz").stat().st_size
    for _ in range(2):  # again, for a recording that was made since
        recordings.pool_texts(tmp_path / "kept")
        assert (before / "sources.json.gz").stat().st_size < size
        assert store.open_run(before).sources == {"softmax": {"own.py": "same", "other.py": "1"}}
    alone = shutil.copytree(before, tmp_path / "elsewhere" / before.name)
    assert store.open_run(alone).sources == {"softmax": {}}
    (tmp_path / "kept" / "texts.json.xz").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="damaged"):
        _ = store.open_run(before).sources


def test_listings_of_a_sibling_are_found(tmp_path):
    launches = [{"function": "f", "stages": {"sass": "x"}}]
    for name, found in (("a", launches), ("b", "a"), ("c", "b"), ("d", "../a")):
        (tmp_path / name).mkdir()
        packed = lzma.compress(json.dumps({SOFTMAX.id: found}).encode())
        (tmp_path / name / "listings.json.xz").write_bytes(packed)
    assert listings.of_case(tmp_path / "b", SOFTMAX) == listings.of_case(tmp_path / "a", SOFTMAX) != []
    for name in ("c", "d"):
        with pytest.raises(ValueError, match="record it again"):
            listings.of_case(tmp_path / name, SOFTMAX)
