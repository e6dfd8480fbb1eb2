"""The open run's GPU in words: sizes, and roofs with where they are from."""

import re

from tilescope.table.run import Ceiling, Device
from tilescope_dashboard.components.device_card import described

DEVICE = Device(
    name="<b>GPU</b>", target="sm_90", multiprocessors=132, l2_bytes=50_000_000, memory_bytes=80_000_000_000, measured=True,
    ceilings=(
        Ceiling("hbm", 4.8e12, "byte/second", "datasheet", "a published sheet"),
        Ceiling("hbm", 4.2e12, "byte/second", "measured", "copy of <i>1 GB</i>"),
        Ceiling("fp32", 6.7e13, "flop/second", "datasheet", "a published sheet"),
        Ceiling("l2", 1.05e13, "byte/second", "measured", "re-read; measured at 2026-11-26T07:35:30+00:00"),
        Ceiling("l1", 3.2e13, "byte/second", "measured"),
    ),
)  # fmt: skip


def test_device_card_shows_measured_and_published_roofs() -> None:
    said = described(DEVICE)
    said = re.sub(r'<span class="value">(.*?)</span>', r"\1", said)
    rows = {
        name: re.findall("<td>(.*?)</td>", cells)
        for name, cells in re.findall("<tr><th>([^<]*)</th>(<td>.*?)</tr>", said)
    }
    mark = ' <sup class="quiet">{}</sup>'
    assert rows["HBM"] == ["4.20 TB/s" + mark.format(1), "4.80 TB/s" + mark.format(2), "87.5 %"]
    # Nobody publishes an L2's: absent is a dash, and so is what would follow from it.
    assert rows["fp32"] == ["–", "67.0 Tflop/s" + mark.format(2), "–"]
    assert rows["L2"] == ["10.5 TB/s" + mark.format(3), "–", "–"]
    assert rows["L1"] == ["32.0 TB/s", "–", "–"]
    notes = ["copy of &lt;i&gt;1 GB&lt;/i&gt;", "a published sheet", "re-read; measured at 2026-11-26 07:35 UTC"]
    assert re.findall("<li>(.*?)</li>", said) == notes
    assert "All runs on this GPU and driver share" in said


def test_a_device_that_was_only_looked_up_says_so() -> None:
    said = described(Device("NVIDIA H200", "sm_90", 132, 1, 1, measured=False))
    assert "from published figures" in said
    assert "<table" not in said
    assert described(None) == ""
    bare = described(Device("NVIDIA T4", "", 0, 0, 0, measured=True))
    assert "Its roofs were not measured" in bare and bare.count("–") == 4 and "0 B" not in bare
