"""What kernels and launchers did that were captured at first sight, each as a small one of our own."""

from __future__ import annotations

import pytest
import torch
from tilescope.notebook.capturing import Capture

from . import unseen_launches as unseen

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches are interpreted where there is no GPU")


def counted(found) -> dict[str, float]:
    """The metrics of the one launch of a run."""
    assert not found.failures
    return dict(zip(found.table["metric"], found.table["value"], strict=True))


def test_a_function_of_triton_that_a_person_wrapped_is_written_down(tmp_path):
    with Capture("sm_90") as capture:
        out = unseen.bits(torch.ones(64, device="cuda"))
    assert out[0] == 0x3F800000 and capture.notes == []
    # As another process has it: made again, and interpreted there.
    capture.records[0].data.pop("counted")
    found = counted(capture.profile(["compiler", "interpreter"], runs_dir=tmp_path))
    assert (found["unique_bytes_read"], found["unique_bytes_written"]) == (256, 256) and found["registers"] > 0


def test_a_launch_that_takes_too_long_is_tried_once_however_often_it_is_made():
    with Capture("sm_90", limit=2.0) as capture:
        x, out = torch.randn(16, device="cuda"), torch.empty(16, device="cuda")
        for _ in range(50):
            unseen.copy_kernel[(1 << 20,)](x, out, BLOCK=16)
    (record,) = capture.records
    assert record.calls == 50 and 0 < record.data["waited"] < 60
    (note,) = capture.notes
    assert "it would take longer than one launch may of the 2 seconds" in note
