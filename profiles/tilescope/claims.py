"""What people are told of fused kernels, what the bytes allow, and what was measured, side by side.

Runs -> frame -> Markdown, pure but for a look at whether a kernel's source has changed since. Only what was measured
counts. The bound is the bytes of the unfused implementation over those of the fused one (``traffic.speedup``'s
prediction): a memory-bound program gains no more by moving less, though an unfused one whose launches are slow for other
reasons can lose more than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope import roofline, summary, traffic
from tilescope.staleness import stale_kernels
from tilescope.store import LoadedRun

FORWARD = "forward"
#: What rows are made of. Most of a recording is something else, and to gather that takes as long again.
_NEEDED = {"gpu_time", "algorithm_flops"} | {
    f"{whose}_bytes_{way}" for whose in ("algorithm", "requested", "unique", "dram") for way in ("read", "written")
}


@dataclass(frozen=True)
class Claim:
    """``low`` to ``high`` times the speed of ``over``, as popular texts have it for a kernel's pass.

    ``over`` is ``eager``, ``compile`` or ``library``, the best one that was measured.
    """

    kernel: str
    low: float
    high: float
    over: str = traffic.BASELINE
    direction: str = FORWARD


CLAIMS = (
    Claim("add_relu_mul", 3.0, 4.0),
    Claim("layer_norm", 1.2, 2.0),
    Claim("add_rms_norm", 2.0, 3.0),
    Claim("matmul", 0.8, 0.9),
    Claim("swiglu", 1.5, 2.0),
    Claim("rope", 1.8, 2.0),
    Claim("conv2d", 1.5, 1.5),
    Claim("fp8_matmul", 0.9, 0.95, over="library"),
)

COLUMNS = {
    "kernel": "str",
    "pass": "str",
    "workload": "str",
    "claim_low": "float64",
    "claim_high": "float64",
    "bound": "float64",
    "over_eager": "float64",
    "over_compile": "float64",
    "library": "str",
    "over_library": "float64",
    "roof": "str",
    "of_roof": "float64",
    "verdict": "str",
    "run": "str",
    "device": "str",
    "started": "str",
    "changed": "bool",
}


def claims(runs: Iterable[LoadedRun]) -> pd.DataFrame:
    """``best`` of what each of the runs says."""
    return best(row for loaded in runs for row in of_run(loaded))


def best(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """One row a kernel and pass, kernels by name, of those of several runs: the one in the run that says most of it.

    That is a run of the kernel as it is today rather than of a former one (``changed``), then one with other
    implementations to compare with, then one of more workloads, then the newest. ``bound`` and ``over_…`` are speed
    ratios (GPU times of the other implementation over ours); ``of_roof`` is the floor's time over ours, and ``roof`` says
    which: copy or read bandwidth, or a pipe's rate. ``verdict`` compares the claim with the measurement, and is empty where
    nothing is claimed. Absent is NaN.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault((row["kernel"], row["pass"]), row)
        found[row["kernel"], row["pass"]] = max(known, row, key=_worth)
    # By name, for a recording says nothing of what belongs together, and a family may be recorded in parts.
    ordered = sorted(found.values(), key=lambda row: str(row["kernel"]))
    return pd.DataFrame(ordered, columns=list(COLUMNS)).astype(COLUMNS)


def of_run(loaded: LoadedRun) -> list[dict[str, Any]]:
    """A row a kernel and pass that the run measured: the largest problem of the Triton implementation.

    It has ``COLUMNS``, and in ``workloads`` how many of them the run has.
    """
    if not loaded.run.device.measured:
        return []
    table = loaded.table[(loaded.table["config"] == "") & loaded.table["metric"].isin(_NEEDED)]
    every = summary.summarise(table, loaded.run.device, loaded.run.kernels)
    gains = traffic.speedup(table)
    changed = stale_kernels(loaded)
    rows = []
    for (kernel, _), cases in every.groupby(["kernel", "pass"], sort=False):
        ours = cases[(cases["impl"] == "triton") & cases["measured"]]
        largest = summary.headline(ours)
        if largest is not None:
            more = {"changed": kernel in changed, "workloads": ours["workload"].nunique()}
            rows.append({**_row(largest, gains, loaded), **more})
    return rows


def _worth(row: dict[str, Any]) -> tuple[bool, int, int, str]:
    compared = sum(not math.isnan(row[name]) for name in ("over_eager", "over_compile", "over_library"))
    return not row["changed"], compared, row["workloads"], row["run"]


def _row(ours: dict[str, object], gains: pd.DataFrame, loaded: LoadedRun) -> dict[str, object]:
    device = loaded.run.device
    near = roofline.of_roof(ours, device)
    gain = gains[
        (gains["impl"] == "triton") & (gains["workload"] == ours["workload"]) & (gains["pass"] == ours["pass"])
        & (gains["kernel"] == ours["kernel"])
    ]  # fmt: skip
    row: dict[str, object] = {
        **{name: ours[name] for name in ("kernel", "pass", "workload")},
        "bound": math.nan if near.pipe or gain.empty else gain["predicted"].iloc[0],
        "over_eager": ours["speedup_eager"],
        "over_compile": ours["speedup_compile"],
        "library": ours["library"],
        "over_library": ours["speedup_library"],
        "roof": near.name,
        "of_roof": near.fraction,
        "run": loaded.run.id,
        "device": device.name,
        "started": loaded.run.started[:10],
    }
    return {**row, **_verdict(row)}


def _verdict(row: dict[str, object]) -> dict[str, object]:
    claim = next((c for c in CLAIMS if (c.kernel, c.direction) == (row["kernel"], row["pass"])), None)
    if claim is None:
        return {"claim_low": math.nan, "claim_high": math.nan, "verdict": ""}
    measured = float(row[f"over_{claim.over}"])  # type: ignore[arg-type]
    if math.isnan(measured):
        said = "not measured"
    elif claim.low <= measured <= claim.high:
        said = "holds"
    else:
        said = "less" if measured < claim.low else "more"
    return {"claim_low": claim.low, "claim_high": claim.high, "verdict": said}


def markdown(rows: pd.DataFrame) -> str:
    """The table of claims as GitHub's Markdown, most of it ratios of speed; an absent value is a dash."""
    headings = [
        "kernel",
        "workload",
        "people say",
        "bytes allow",
        "over eager",
        "over torch.compile",
        "over the library",
        "of the roof",
    ]
    lines = ["| " + " | ".join(headings) + " |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for row in rows.to_dict("records"):
        name = row["kernel"] + ("" if row["pass"] == FORWARD else f", {row['pass']}") + ("*" if row["changed"] else "")
        library = f"{_times(row['over_library'])} {row['library']}" if row["library"] else "–"
        said = f"{_range(row['claim_low'], row['claim_high'])}× ({row['verdict']})" if row["verdict"] else "–"
        cells = [name, row["workload"], said, _times(row["bound"]), _times(row["over_eager"]), _times(row["over_compile"]), library,
                 "–" if math.isnan(row["of_roof"]) else f"{row['of_roof'] * 100:.0f} % {row['roof']}"]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    if rows["changed"].any():
        lines += ["", "\\* Measured before the kernel's latest change, and to be measured again."]
    return "\n".join(lines)


def provenance(runs: Iterable[LoadedRun]) -> str:
    """Where, when and with which versions the runs were measured, a line each distinct answer."""
    lines = [
        f"{loaded.run.device.name}, {loaded.run.started[:10]}, "
        + ", ".join(f"{name} {version}" for name, version in loaded.run.versions.items())
        for loaded in runs
        if loaded.run.device.measured
    ]
    return "\n".join(dict.fromkeys(lines))


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _times(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}×"
