"""GPU: live readings of this machine's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.telemetry import Gpu, Sample, held, slowed
from tilescope_dashboard.data.units import write
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of ``listed``'s frame.
COLUMNS = (
    Column("gpu", "GPU"), Column("utilization", "busy", "ratio"), Column("memory_used", "memory (B)", "byte"),
    Column("sm_clock", "SM clock", "hertz"), Column("memory_clock", "memory clock", "hertz"),
    Column("power", "power", "watt"), Column("power_limit", "limit", "watt"),
    Column("temperature", "temp.", "celsius"), Column("pcie_received", "PCIe in", "byte/second"),
    Column("pcie_sent", "PCIe out", "byte/second"), Column("held", "clocks held by"),
)  # fmt: skip
ABOUT = Sentence(
    "GPU",
    "NVML's readings of this machine, once a second while this view is open. Dotted: the limit. Ring: the clock is held down.",
)


def listed(known: Sequence[tuple[Gpu, Sample]]) -> pd.DataFrame:
    """The newest reading of each GPU, a row each, with ``COLUMNS``."""
    rows = [{**asdict(sample), "gpu": gpu.label, "held": held(sample.reasons)} for gpu, sample in known]
    return pd.DataFrame(rows, columns=[column.name for column in COLUMNS])


def sentence(known: Sequence[tuple[Gpu, Sample]]) -> Sentence:
    """The sentence on the busiest GPU."""
    if not known:
        return Sentence("Waiting for the first reading…", ABOUT.text)
    gpu, sample = max(known, key=lambda pair: pair[1].utilization or 0.0)
    said = [f"{gpu.label}: {write(sample.utilization, 'ratio')} busy"]
    if sample.power is not None:
        limit = f" of {write(sample.power_limit, 'W')}" if sample.power_limit else ""
        said.append(f"{write(sample.power, 'W')}{limit}")
    if slowed(sample.reasons):
        said.append(f"clocks held by {held(sample.reasons)}")
    return Sentence(", ".join(said), ABOUT.text)
