"""Small versions of kernels and launchers that real programs have and that captures once got wrong."""

import multiprocessing
import re
import time
from pathlib import Path

import pytest
import torch
from tilescope import cli
from tilescope.captures import recording
from tilescope.collectors import interpreter
from tilescope.commands import choices
from tilescope.execution import compiling, execute, kernel_code
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import interpret
from tilescope.notebook import script_running
from tilescope.notebook.capturing import Capture
from tilescope.table import kernel_faults
from tilescope.table.case import Case

from . import capturing
from . import unseen_launches as unseen

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches are interpreted where there is no GPU")


def replayed(capture, folder):
    """The metrics of the one launch, made again in another process and interpreted and compiled there."""
    capture.records[0].data.pop("counted")
    (reference,) = capture.write(folder)
    case = Case(reference, "triton", "forward", execute.load_spec(reference).workloads[0].id)
    found = {}
    for collector in ("interpreter", "compiler"):
        (answer,) = capturing.capture(collector, [case], target="sm_90").values()
        found |= capturing.figures(answer)
    return found


def test_wrapped_function_of_triton_is_recorded(tmp_path):
    with Capture("sm_90") as capture:
        out = unseen.bits(torch.ones(64, device="cuda"))
    assert out[0] == 0x3F800000 and capture.notes == []
    found = replayed(capture, tmp_path)
    assert (found["unique_bytes_read"], found["unique_bytes_written"]) == (256, 256) and found["registers"] > 0


def test_slow_launch_is_tried_once():
    with Capture("sm_90", limit=2.0) as capture:
        x, out = torch.randn(16, device="cuda"), torch.empty(16, device="cuda")
        for _ in range(50):
            unseen.copy_kernel[(1 << 20,)](x, out, BLOCK=16)
    (record,) = capture.records
    assert record.calls == 50 and 0 < record.data["waited"] < 60
    (note,) = capture.notes
    assert "it would take longer than one launch may of the 2 s of work" in note


def test_endless_program_is_stopped_at_its_line(tmp_path, monkeypatch):
    with Capture("sm_90", limit=5.0) as capture:
        x, out = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
        unseen.endless_kernel[(2,)](out)
        unseen.copy_kernel[(1,)](x, out, BLOCK=16)
    assert out.tolist() == [1] * 16
    first, second = capture.notes
    line = unseen.endless_kernel.starting_line_number
    assert re.search(rf"endless_kernel, program \(0, 0, 0\), line ({line + 3}|{line + 4})", first)
    assert (
        "the first program had not ended after 1 s of work: a loop without end, or longer than one launch may" in first
    )
    assert second.startswith("copy_kernel: endless_kernel was not made before it")
    monkeypatch.setattr(interpreter, "SAMPLE", 0.5)
    reference, _ = capture.write(tmp_path)
    spec = execute.load_spec(reference)
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    with pytest.raises(NotApplicable, match="would take longer to interpret"):
        interpreter.capture(case, spec, tmp_path / "counted.json.gz", {"interpreter_limit": 1})


TWICE = """
import torch, triton, triton.language as tl

@triton.jit
def twice(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))

x = torch.ones(16, device="cuda")
y = torch.zeros_like(x)
twice[(1,)](x, y, BLOCK=16)
assert y.tolist() == [2] * 16, "not twice"
assert y.tolist() == [3] * 16, "wrong"
"""


@pytest.mark.parametrize(("gathers", "error", "said"), [
    (True, NotApplicable, "endless_kernel was not made before it, so its inputs may be wrong: chosen_kernel"),
    # Whatever the unmade launch would have stored, this store is outside.
    (False, interpret.InterpretationFailed, "writes 32 bytes past the end of out_ptr: element 8 of 8"),
])  # fmt: skip
def test_error_after_an_unmade_launch_is_a_fault_unless_by_its_results(tmp_path, gathers, error, said):
    with Capture("sm_90", limit=1.0) as capture:
        x, index = torch.ones(16, device="cuda"), torch.full((16,), 1 << 30, device="cuda", dtype=torch.int32)
        unseen.endless_kernel[(2,)](index)
        if gathers:
            unseen.chosen_kernel[(1,)](x, index, torch.empty_like(x), BLOCK=16)
        else:
            unseen.copy_kernel[(1,)](index, torch.empty_like(index[:8]), BLOCK=16)
    with pytest.raises(error, match=said):
        _counted(capture, tmp_path)


def test_atomics_on_an_unmade_launchs_results_are_no_fault(tmp_path):
    with Capture("sm_90", limit=1.0) as capture:
        x, count = torch.ones(16, device="cuda"), torch.full((1,), 1 << 20, device="cuda", dtype=torch.int32)
        unseen.endless_kernel[(2,)](count)
        unseen.appended_kernel[(1,)](x, count, torch.empty_like(x), BLOCK=16)
    with pytest.raises(NotApplicable, match="its inputs may be wrong: appended_kernel"):
        _counted(capture, tmp_path)


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [("scattered", ""), ("every_kth", ""), ("overwritten", "2 programs store to the same 64 bytes")],
)
def test_faults_of_an_unmade_launchs_results_are_not_told(tmp_path, kernel, wrong):
    with Capture("sm_90", limit=1.0) as capture:
        x, index = torch.rand(32, device="cuda"), torch.zeros(32, device="cuda", dtype=torch.int32)
        unseen.endless_kernel[(2,)](index)
        getattr(unseen, f"{kernel}_kernel")[(2,)](x, index, torch.empty_like(x), BLOCK=16)
    said = kernel_faults.failure(_counted(capture, tmp_path))
    assert wrong in said if wrong else not said


def _counted(capture, folder):
    """The interpreter's artefact of the last kernel's launch, counted again."""
    _, reference = capture.write(folder)
    spec = execute.load_spec(reference)
    artefact = folder / "counted.json.gz"
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    interpreter.capture(case, spec, artefact, {"interpreter_limit": 1})
    return artefact


@pytest.mark.parametrize(
    ("limit", "ended"), [(0, ""), (5, "twice.py ended with AssertionError: wrong, line 13 of twice.py")]
)
def test_script_that_lacks_a_launchs_results_is_not_to_blame(tmp_path, monkeypatch, capsys, limit, ended):
    monkeypatch.chdir(tmp_path)
    Path("twice.py").write_text(TWICE)
    _, job, said = script_running.captured("twice.py", {"interpreter_limit": limit}, target="sm_90", runs_dir=tmp_path)
    assert said == ended
    assert any(note.endswith("line 12 of twice.py, after twice was not made") for note in job.notes) == (not limit)
    assert ("twice was not made before this" in capsys.readouterr().err) == (not limit)


def test_compiling_of_unmade_launches_is_limited(monkeypatch):
    allowed: list[float] = []

    def compiled(_launch, seconds):
        allowed.append(seconds)
        time.sleep(0.3)
        raise TimeoutError

    monkeypatch.setattr(compiling, "compiled", compiled)
    monkeypatch.setattr(recording, "TOUCHING", 0.5)
    with Capture("sm_90", limit=0) as capture:
        for size in range(16, 26):
            unseen.copy_kernel[(1,)](torch.ones(size, device="cuda"), torch.empty(size, device="cuda"), BLOCK=16)
    assert len(capture.records) == 10 and 1 <= len(allowed) <= 2 and allowed[0] == 0.5


def test_note_counts_new_processes():
    with Capture("sm_90") as capture:
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        unseen.copy_kernel[(1,)](torch.ones(16, device="cuda"), torch.empty(16, device="cuda"), BLOCK=16)
    assert capture.notes == ["not captured, 1 new process: capture in the process that launches"]
    assert process.exitcode == 0


@pytest.mark.parametrize(
    "given", [["--target", "sm_80"], ["--target=sm_80"], ["1", "--collect", "compiler", "--", "x"]]
)
def test_own_option_after_a_script_is_refused(tmp_path, capsys, given):
    script, ran = tmp_path / "train.py", tmp_path / "ran"
    script.write_text(f"open({str(ran)!r}, 'w').close()\n")
    for start in (["profile", str(script)], [str(script)]):
        assert cli.main([*start, *given]) == 2
        said = capsys.readouterr().err
        assert f"put it before {script}, or write -- before the script's own options: {script} -- --" in said
    assert not ran.exists()


@pytest.mark.parametrize(("given", "seen"), [
    (["--", "--target", "3"], ["--target", "3"]), (["--lr", "3"], ["--lr", "3"]), (["a", "--", "--title"], ["a", "--", "--title"]),
    *[([word], [word]) for word in ("--run=3", "--rep", "--t")],
])  # fmt: skip
def test_other_words_after_a_script_are_its_own(tmp_path, given, seen):
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    before, own = choices.split(["profile", str(script), *given])
    assert before == ["profile", str(script)]
    assert choices.own_arguments(str(script), own) == seen


def test_note_names_an_empty_grid():
    with Capture("sm_90") as capture:
        x, out = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
        unseen.copy_kernel[(x.numel() // 64, 2)](x, out, BLOCK=16)
    (note,) = capture.notes
    assert note.startswith("copy_kernel: the launch at ") and note.endswith(" has no program: its grid is (0, 2, 1)")


KINDS = "import enum\nclass Kind(enum.IntEnum):\n    WHOLE = 1\n"
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch, triton, triton.language as tl
from kinds_of_a_person import Kind

@triton.jit
def kernel(x_ptr, out_ptr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if KIND == 1:
        x = tl.softmax(x)
    tl.store(out_ptr + at, x)

kernel[(1,)](torch.ones(64, device="cuda"), torch.empty(64, device="cuda"), KIND=Kind.WHOLE, BLOCK=64)
"""


def test_class_is_imported_from_the_scripts_path(tmp_path):
    library, script = tmp_path / "library", tmp_path / "script.py"
    library.mkdir()
    (library / "kinds_of_a_person.py").write_text(KINDS)
    script.write_text(SCRIPT.format(folder=str(library)))
    capture = Capture("sm_90")
    assert script_running.run_script(str(script), [], capture) == "" and capture.notes == []
    found = replayed(capture, tmp_path / "captured")
    assert (found["unique_bytes_read"], found["unique_bytes_written"]) == (256, 256) and found["registers"] > 0


def test_attribute_is_not_taken_for_a_global_name():
    def maximum():
        raise NotImplementedError

    def kernel(x):
        return torch.maximum(x, *(zero + y for y in x))

    zero = 0
    kernel.__globals__["maximum"] = maximum
    try:
        writer = kernel_code.Writer()
        writer.function(kernel)
    finally:
        del kernel.__globals__["maximum"]
    assert [made["name"] for made in writer.functions] == ["kernel"]
    assert writer.functions[0]["names"] == {"torch": {"module": "torch"}, "zero": 0}
