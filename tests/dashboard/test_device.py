"""The open run's GPU in words: sizes, and roofs with where they are from."""

from __future__ import annotations

from tilescope.schema import Ceiling, Device
from tilescope_dashboard.headlines.device import described

DEVICE = Device(
    name="<b>GPU</b>", target="sm_90", multiprocessors=132, l2_bytes=50_000_000, memory_bytes=80_000_000_000, measured=True,
    ceilings=(
        Ceiling("hbm", 4.8e12, "byte/second", "datasheet", "a published sheet"),
        Ceiling("hbm", 4.2e12, "byte/second", "measured", "copy of <i>1 GB</i>"),
        Ceiling("l2", 1.05e13, "byte/second", "measured", "re-read"),
    ),
)  # fmt: skip


def test_a_roof_is_said_as_measured_and_as_published_with_its_share() -> None:
    said = described(DEVICE)
    row = said[said.index("<th>HBM</th>") : said.index("<th>L2</th>")]
    assert "4.20 TB/s" in row
    assert "4.80 TB/s" in row
    assert "87.5 %" in row
    assert row.index("4.20") < row.index("4.80")
    assert "a published sheet" in row
    # Nobody publishes an L2's: absent is a dash, and so is what would follow from it.
    assert said[said.index("<th>L2</th>") :].count("<td>–</td>") == 2
    assert "measured there" in said


def test_names_and_notes_are_text() -> None:
    said = described(DEVICE)
    assert "<b>GPU" not in said
    assert "&lt;b&gt;GPU" in said
    assert "<i>" not in said


def test_a_device_that_was_only_looked_up_says_so() -> None:
    said = described(Device("NVIDIA H200", "sm_90", 132, 1, 1, measured=False))
    assert "only published figures" in said
    assert "<table" not in said
    assert described(None) == ""
