"""Values of source lines: parsed from each source, kept with the run, and assigned to the right file."""

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from tilescope.collectors import compiled_text, compiler
from tilescope.collectors.ncu import ncu_csv, source
from tilescope.runs import listings, store
from tilescope.runs.publish import publish
from tilescope.runs.store import RunWriter, StoreError
from tilescope.table import line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import SchemaError

from . import made_up

PAGE = gzip.decompress(Path(__file__).with_name("fixtures").joinpath("source_cuda_sass_h200.csv.gz").read_bytes())
TEXT = PAGE.decode()
CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
SMALL = dataclasses.replace(CASE, workload="8x8-bf16")
SOURCE = "import triton\n\n\n@triton.jit\ndef softmax_kernel(x):\n    pass\n"


def by_line(frame, metric, function="softmax_kernel"):
    rows = frame[(frame["metric"] == metric) & (frame["function"] == function)]
    return dict(zip(zip(rows["file"], rows["line"], strict=True), rows["value"], strict=True))


@pytest.fixture(scope="module")
def sampled():
    return source.parse_page(TEXT, CASE)


def test_lines_add_up_and_reasons_are_parts(sampled):
    stalls = by_line(sampled, "stall_samples")
    assert stalls["probe_kernels.py", 9] == 3820
    assert stalls["standard.py", 191] == 1470
    assert by_line(sampled, "instructions_executed")["probe_kernels.py", 12] == 8_912_896
    lines = [line for launch in source.launches(TEXT) for line in launch.lines()]
    printed = sum(int(line["Warp Stall Sampling (All Samples)"]) for line in lines if line["Line No"])
    assert sampled.loc[sampled["metric"] == "stall_samples", "value"].sum() == printed
    # 16384 x 4096 bfloat16 numbers, read once and written once.
    assert by_line(sampled, "requested_bytes_read") == {("probe_kernels.py", 9): 134_217_728}
    assert by_line(sampled, "requested_bytes_written") == {("probe_kernels.py", 12): 134_217_728}
    assert by_line(sampled, "sectors_read") == {("probe_kernels.py", 9): 134_217_728 / 32}
    # A copy from global to shared memory reads.
    assert by_line(sampled, "sectors_read", "mm_kernel")["probe_kernels.py", 22] == 50_339_664
    wide = sampled.pivot_table(index=["function", "file", "line"], columns="metric", values="value")
    reasons = [name for name in wide if str(name).startswith("stall_") and name != "stall_samples"]
    assert len(reasons) == 18
    unexplained = wide["stall_samples"] - wide[reasons].sum(axis="columns")
    # ncu prints no column for the reason of 354 samples of the matrix product's loop.
    assert unexplained[unexplained != 0].to_dict() == {("mm_kernel", "probe_kernels.py", 23): 354}


def test_an_absent_cell_gives_no_row():
    row = TEXT.index('"0x7f46f57a2900"')
    end = TEXT.index("\n", row)
    cells = TEXT[row:end].split(",")
    # Warp stalls, as ncu prints what it could not sample.
    place = next(i for i, cell in enumerate(cells) if cell == '"21"')
    cells[place] = '"-"'
    found = by_line(source.parse_page(TEXT[:row] + ",".join(cells) + TEXT[end:], CASE), "stall_samples")
    assert found["probe_kernels.py", 9] == 3820 - 21
    assert "sass_instructions" not in set(source.parse_page(TEXT, CASE)["metric"])


def same_code(caller, spoil=False):
    """The launch's own instructions as the compiler would list them, library lines given to their callers."""
    code, line = [], 0
    lines = source.launches(TEXT)[0].lines()
    first = min(int(cells["Address"], 16) for cells in lines if cells["Address"].startswith("0x"))
    for cells in lines:
        number, address, instruction = cells["Line No"], cells["Address"], cells["Source (SASS)"]
        line = caller.get(number, int(number)) if number else line
        if address.startswith("0x"):
            text = "NOP" if spoil else instruction
            code.append(compiled_text.Text(text, "probe_kernels.py", line, int(address, 16) - first))
    return code


def test_inlined_calls_count_at_their_line_for_equal_code():
    code = same_code({"170": 10, "191": 10, "263": 12, "293": 12})
    found = by_line(source.parse_page(TEXT, CASE, {"softmax_kernel": code}), "stall_samples")
    assert {file for file, _ in found} == {"probe_kernels.py"}
    assert found["probe_kernels.py", 10] == 86 + 443 + 1470
    assert found["probe_kernels.py", 12] == 406 + 412 + 244
    other = source.parse_page(TEXT, CASE, {"softmax_kernel": same_code({"191": 10}, spoil=True)})
    assert by_line(other, "stall_samples")["standard.py", 191] == 1470


def test_the_compilers_lines():
    sass = "/*0000*/  LDC R1, c[0x0][0x28]  // k.py:5\n.L_x_0:\n/*0010*/  EXIT  // k.py:6\n/*0020*/  BRA  // k.py:6\n/*0030*/  NOP\n"
    launch = {"function": "f", "file": "k.py", "block_threads": 128, "stages": {"sass": sass}}
    found = compiler.lines_of([launch], CASE)
    assert dict(zip(found["line"], found["value"], strict=True)) == {5: 1.0, 6: 2.0}


@pytest.mark.parametrize("row", [{"metric": "heat", "line": 1}, {"metric": "stall_samples", "line": 0}])
def test_rows_with_unknown_metrics_or_lines_are_refused(row):
    with pytest.raises(SchemaError):
        line_values.frame([{**CASE.row(str(row["metric"]), 1.0, "ncu"), "line": row["line"]}])


def test_text_without_a_source_page_is_refused():
    with pytest.raises(ncu_csv.NcuFormatError, match="source page"):
        source.parse_page("==PROF== nothing", CASE)


@pytest.fixture
def loaded(tmp_path):
    """A run of softmax with lines, sources and the compiler's artefacts of two workloads."""
    cost = {case.workload: {"forward": {"bytes_read": size}} for case, size in ((CASE, 100), (SMALL, 1))}
    facts = {"softmax": {"file": "", "cost": cost}, "matmul": {"file": ""}}
    writer = RunWriter(tmp_path / "runs", made_up.run(kernels=facts))
    for case in (CASE, SMALL):
        writer.append(schema.frame([case.row("interval", 1e-6, "events")]))
        stages = {"ttgir": "", "ptx": "", "sass": f"/*0000*/  EXIT  // {case.workload}:6\n"}
        artefact = {"launches": [{"function": "softmax_kernel", "file": "softmax.py", "stages": stages}]}
        packed = gzip.compress(json.dumps(artefact).encode())
        writer.artefact_path("compiler", case, ".json.gz").write_bytes(packed)
    place = {"launch": 0, "function": "softmax_kernel", "file": "softmax.py", "line": 5}
    for value in (1.0, 2.0):
        frame = line_values.frame([CASE.row("stall_samples", value, "ncu", **place)])
        writer.append_lines("softmax", frame, {"softmax.py": SOURCE})
    writer.append_lines("matmul", line_values.frame([]), {"matmul.py": "secret"})
    return store.open_run(writer.finish())


def test_publish_keeps_lines_sources_and_largest_listing(loaded, tmp_path):
    kept = store.open_run(publish(loaded, tmp_path / "kept", ["softmax"]))
    assert list(kept.lines["value"]) == [1.0, 2.0]
    assert kept.sources == {"softmax": {"softmax.py": SOURCE}}
    (largest,) = listings.of_case(kept.folder, CASE)
    assert "16384x4096" in largest.stages["sass"]
    assert listings.of_case(kept.folder, SMALL) == []
    assert not (kept.folder / "artefacts").exists()
    # What was published can be published again.
    again = publish(kept, tmp_path / "again")
    assert listings.of_case(again, CASE) == [largest]


def test_the_present_file_is_used_only_if_it_is_unchanged(tmp_path, loaded):
    today = tmp_path / "own.py"
    today.write_text(SOURCE)
    same = {"file": str(today), "sha256": hashlib.sha256(SOURCE.encode()).hexdigest()}
    other = dataclasses.replace(loaded.run, kernels={"own": same, "stale": {**same, "sha256": "0"}})
    opened = dataclasses.replace(loaded, run=other)
    assert opened.source_text("own", "own.py") == SOURCE
    assert opened.source_text("own", "else.py") is None
    assert opened.source_text("stale", "own.py") is None


@pytest.mark.parametrize("name", ["lines.parquet", "sources.json.gz"])
def test_a_damaged_file_is_reported(name, loaded):
    (loaded.folder / name).write_bytes(b"\x1f\x8bdamaged")
    with pytest.raises(StoreError, match="record it again"):
        _ = store.open_run(loaded.folder).lines, store.open_run(loaded.folder).sources


def test_a_damaged_listing_is_reported(loaded):
    next((loaded.folder / "artefacts" / "compiler").glob("*16384*")).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="record it again"):
        listings.of_case(loaded.folder, CASE)


@pytest.mark.parametrize("variable", ["SPEC", "SOFTMAX"])
def test_a_persons_own_kernel_is_found_by_its_name(tmp_path, variable):
    own = dataclasses.replace(CASE, kernel=f"my folder/kernels.py:{variable}")
    folder = tmp_path / "artefacts" / "compiler"
    folder.mkdir(parents=True)
    artefact = {"launches": [{"function": "f", "file": "kernels.py", "stages": {"sass": "x"}}]}
    (folder / f"{own.slug}.json.gz").write_bytes(gzip.compress(json.dumps(artefact).encode()))
    assert [launch.file for launch in listings.of_case(tmp_path, Case(own.name, *dataclasses.astuple(own)[1:]))] == [
        "kernels.py"
    ]
    assert listings.of_case(tmp_path, CASE) == []


def test_lines_of_another_library_have_its_prefix(sampled):
    found, sources = line_values.of_another("liger", sampled, {"softmax.py": "theirs"})
    assert set(line_values.validate(found)["file"]) == {f"liger/{name}" for name in sampled["file"]}
    assert sources == {"liger/softmax.py": "theirs"}
    empty, _ = line_values.of_another("liger", line_values.frame([]), {})
    assert empty.empty
