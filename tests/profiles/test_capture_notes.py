"""What a capture says of launches that it did not make or record, or that a GPU would refuse."""

import multiprocessing
import runpy

import pytest
import torch
from tilescope import Capture

from . import foreign_launches as foreign

pytestmark = pytest.mark.usefixtures("no_gpu")


def test_note_names_a_tensor_on_the_cpu():
    table, where = torch.randn(10, 64), torch.tensor([3, 3, 9])
    with Capture() as capture:
        foreign.gather(table.cuda(), where.cuda())
        assert not capture.notes
        foreign.gather(table[:, :32].cuda(), where)
    (said,) = capture.notes
    assert "where_ptr is on the CPU (Triton there: Pointer argument (at 1) cannot be accessed" in said
    (fault,) = capture.records[1].data["counted"]["faults"]
    assert fault["wrong"] and fault["what"].startswith(
        "where_ptr is on the CPU, and other tensors on the GPU, so Triton"
    )


def test_zeros_of_autograd_are_no_tensors_on_the_cpu():
    with Capture() as capture:
        x = torch.ones(16, device="cuda", requires_grad=True)
        foreign.Both.apply(x)[0].sum().backward()
    assert capture.notes == [] and all("faults" not in record.data["counted"] for record in capture.records)


def test_launch_on_the_cpu_alone_is_no_fault():
    with Capture() as capture:
        foreign.gather(torch.randn(10, 64), torch.tensor([3, 3, 9]))
    assert "faults" not in capture.records[0].data["counted"] and capture.notes


def test_note_of_a_wrong_access_names_line_and_element():
    with Capture() as capture:
        foreign.gather(torch.randn(10, 64).cuda(), torch.tensor([11]).cuda())
    (note,) = capture.notes
    assert "gather_kernel, program (0, 0, 0), line" in note
    assert "reads" in note and note.endswith("the end of table_ptr: element 704 of 640")
    with Capture() as capture:
        foreign.gather(torch.randn(1, 64, device="cuda").expand(10, 64), torch.tensor([2], device="cuda"))
    (note,) = capture.notes
    assert note.endswith(
        "table_ptr: element 128 of 64 (table_ptr is expanded, as the gradient of a sum is: .contiguous() copies)"
    )


def test_note_of_a_slow_launch_names_the_cure():
    counter, out = torch.zeros(1, dtype=torch.int32), torch.empty(100_000, dtype=torch.int32)
    with Capture("sm_90", 0.2) as capture:
        for _ in range(2):
            foreign.counting_kernel[(100_000,)](counter, out)
    allowed = "the 0.2 s of work for interpreting: choose smaller inputs, or allow more (--interpreter-limit, limit= or interpreter_limit=)"
    said = [note.partition(": it would take longer than one launch may of ")[2] for note in capture.notes]
    assert [one for one in said if one] == [allowed]


def test_note_counts_launches_of_forked_processes():
    with Capture("sm_90") as capture:
        foreign.multiplier(5)(torch.ones(16))
        child = multiprocessing.get_context("fork").Process(target=foreign.multiplier(5), args=(torch.ones(16),))
        child.start()
        child.join()
    assert (child.exitcode, capture.calls) == (0, 1)
    assert [note for note in capture.notes if "forked" in note] == [
        "not recorded, launches of processes that were forked (1): capture in the process that launches"
    ]


def test_note_names_another_vendors_library():
    with Capture("sm_90") as capture:
        foreign.of_amd_kernel[(1,)](torch.ones(16), torch.ones(16), BLOCK=16)
    assert any(note.endswith("llrint of AMD's device library is not interpreted") for note in capture.notes)


def test_note_names_what_cannot_be_recorded(tmp_path):
    with Capture() as capture:
        foreign.multiplier(5)(torch.ones(16))
        foreign.odd_arguments_kernel[(1,)]((torch.ones(4), 2), None, object(), None, None, torch.ones(1))
    assert len(capture.write(tmp_path)) == 1
    (note, *_) = capture.notes
    assert "test_capture_notes.py" in note
    assert "odd_arguments_kernel's name is a object, which cannot be recorded" in note


def test_note_of_a_floor_is_only_where_nothing_counted(tmp_path):
    for limit, collect, noted in ((0, ["compiler"], 1), (0, ["compiler", "interpreter"], 0), (12, ["compiler"], 0)):
        with Capture("sm_90", limit) as capture:
            foreign.gather(torch.randn(64, 64).cuda(), torch.tensor([3, 3, 9]).cuda())
        job = capture.job(collect, runs_dir=tmp_path)
        assert {case.workload for case in job.cases} == {"64x64x3-fp32"}
        assert sum("accesses were not counted" in note for note in job.notes) == noted


def test_kernels_of_long_names_are_recorded_apart(tmp_path):
    kernels = [
        f"""
@triton.jit
def {"k" * 5000}{end}(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), {end})
"""
        for end in "12"
    ]
    (tmp_path / "long.py").write_text("import triton\nimport triton.language as tl\n" + "".join(kernels))
    with Capture("sm_90") as capture:
        for kernel in list(runpy.run_path(str(tmp_path / "long.py")).values())[-2:]:
            kernel[(1,)](torch.zeros(16, device="cuda"), 16)
    assert len({*capture.write(tmp_path / "records")}) == 2
