"""The headline of a kernel or a case as HTML: how fast, how near the floor, and why. Pure; everything is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import times, write

#: Where a kernel has no case in any run.
NOWHERE = "<p>No run says anything about it yet: profile it.</p>"
#: More numbers than these do not fit in one row of a page.
_MOST = 6


def of_kernel(kernel: str, case: Mapping[str, Any] | None, about: str = "") -> str:
    """The kernel's name, ``about`` it in a sentence, and its ``case`` (``of_case``) if one is known."""
    return html_text.heading(kernel or "No kernel", about) + ("" if case is None else of_case(case))


def of_case(case: Mapping[str, Any]) -> str:
    """The numbers of a row of ``tilescope.models.summary.summarise``, and why they are what they are."""
    where = ", ".join(filter(None, (case["impl"], case["workload"], case["pass"], case["chosen"])))
    return f'{html_text.stats(_stats(case))}<p>{escape(case["why"])} <span class="quiet">({escape(where)})</span></p>'


def _stats(case: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, value and provenance of what is known, the most telling first."""
    spread = (
        f"{write(case['gpu_time_low'], 'second')} – {write(case['gpu_time_high'], 'second')}, {case['time_source']}"
    )
    found = [
        ("GPU time", write(case["gpu_time"], "second"), spread),
        ("of roofline", write(case["floor_fraction"], "ratio"), f"{case['roof']}, {write(case['floor'], 'second')}"),
        ("speedup vs eager", times(case["speedup_eager"]), "GPU time"),
        ("speedup vs torch.compile", times(case["speedup_compile"]), "GPU time"),
        (f"speedup vs {case['library']}", times(case["speedup_library"]), "GPU time, quickest library"),
        ("HBM traffic vs minimum", times(case["bytes_ratio"]), case["bytes_source"]),
        ("registers", write(case["registers"], "count"), "per thread"),
        ("theoretical occupancy", write(case["theoretical_occupancy"], "ratio"), f"limited by {case['limiter']}"),
    ]
    if not case["measured"]:
        found.insert(0, ("floor", write(case["floor"], "second"), "predicted, not measured"))
    return [stat for stat in found if stat[1] != "–"][:_MOST]
