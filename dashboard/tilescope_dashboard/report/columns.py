"""The columns of the report's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilescope.hardware import ceilings

from tilescope_dashboard.report.content import Column

_CASE = (Column("impl", "implementation"), Column("workload", "workload"), Column("pass", "pass"))

#: ``time`` is the median and, in brackets, the 5 % and 95 % quantiles over repetitions.
TIMES = (
    Column("kernel", "kernel"), Column("pass", "pass"), Column("workload", "workload"),
    Column("impl", "implementation"), Column("time", "GPU time (5 to 95 %)", "spread"), Column("time_source", "clock"),
    Column("floor_fraction", "of roofline", "ratio"), Column("speedup_eager", "speedup vs eager", "times"),
    Column("speedup_library", "over library", "times"), Column("library", "library"),
)  # fmt: skip
CASES = (
    *TIMES, Column("floor", "floor", "second"), Column("floor_origin", "roof"),
    Column("bytes_ratio", "HBM traffic vs minimum", "times"), Column("bytes_source", "bytes from"),
    Column("chosen", "chosen config"), Column("why", "why"),
)  # fmt: skip
POINTS = (
    *_CASE, Column("kind", "point"), Column("level", "level"), Column("flops", "operations needed", "flop"),
    Column("executed_ratio", "executed / needed", "times"),
    Column("bytes", "bytes", "byte"), Column("bytes_source", "bytes from"),
    Column("intensity", "intensity", "flop/byte"), Column("performance", "performance", "flop/second"),
    Column("gpu_time", "GPU time", "second"), Column("fraction", "of roofline", "ratio"),
)  # fmt: skip


def points(pipes: Iterable[str]) -> tuple[Column, ...]:
    """``POINTS``; operations are those of integers where any point is of a pipe of integers."""
    if not any(ceilings.unit(pipe) == "op/second" for pipe in pipes):
        return POINTS
    return tuple(
        replace(c, unit=c.unit.replace("flop", "op")) if c.unit in ("flop", "flop/second") else c for c in POINTS
    )


LAUNCHES = (
    Column("impl", "implementation"), Column("function", "function"), Column("read", "read (B)", "count"),
    Column("written", "written (B)", "count"), Column("source", "bytes from"),
)  # fmt: skip
OCCUPANCY = (
    *_CASE, Column("function", "function"), Column("registers", "registers", "count"),
    Column("shared_memory", "shared memory (B)", "count"), Column("block_threads", "threads", "count"),
    Column("source", "these from"), Column("occupancy", "occupancy, theoretical", "ratio"),
    Column("achieved_occupancy", "achieved", "ratio"), Column("limiter", "limited by"),
)  # fmt: skip
CONFIGS = (
    Column("config", "config"), Column("time", "time", "second"), Column("time_source", "clock"),
    Column("registers", "registers", "count"), Column("shared_memory", "shared memory (B)", "count"),
    Column("spills", "spills (B)", "count"), Column("theoretical_occupancy", "occupancy", "ratio"),
    Column("code_source", "code from"), Column("reason", "failure"),
)  # fmt: skip
ROOFS = (
    Column("name", "roof"), Column("value", "rate", "spread"), Column("origin", "origin"), Column("note", "how it is known"),
)  # fmt: skip
CHANGES = (
    Column("kernel", "kernel"), Column("pass", "pass"), Column("workload", "workload"),
    Column("impl", "baseline"), Column("other_impl", "other"), Column("time", "GPU time", "second"),
    Column("other_time", "other's", "second"), Column("ratio", "ratio", "times"),
    Column("interval", "95 % interval", "spread"), Column("verdict", "the other is"), Column("source", "clock"),
)  # fmt: skip
RESOURCES = (
    Column("bytes", "HBM bytes", "byte"), Column("other_bytes", "other's", "byte"),
    Column("registers", "registers", "count"), Column("other_registers", "other's", "count"),
    Column("shared_memory", "shared memory", "byte"), Column("other_shared_memory", "other's", "byte"),
    Column("theoretical_occupancy", "occupancy", "ratio"), Column("other_theoretical_occupancy", "other's", "ratio"),
)  # fmt: skip
