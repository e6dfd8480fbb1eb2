"""Kernels and cases at the head of the Overview, as HTML."""

import math
from typing import Any

from tilescope.models import summary
from tilescope_dashboard.views.overview import of_case, of_kernel

HOSTILE = "<img src=x onerror=alert(1)>"


def case(**changes: Any) -> dict[str, Any]:
    """A row of ``summary.summarise``, of which nothing is known but what is given."""
    kinds = {"str": "", "bool": False, "Int32": 0, "float64": math.nan}
    return {**{name: kinds[kind] for name, kind in summary.COLUMNS.items()}, **changes}


def test_measured_case_leads_with_time_and_clock() -> None:
    shown = of_case(case(measured=True, gpu_time=2e-6, gpu_time_low=1e-6, gpu_time_high=3e-6,
                                  time_source="events", floor=1e-6, floor_fraction=0.5, why="Memory-bound."))  # fmt: skip
    assert "2.00 µs" in shown
    assert "1.00 µs – 3.00 µs, events" in shown
    assert "50.0 %" in shown
    assert "Memory-bound." in shown


def test_a_predicted_case_says_so_and_what_is_absent_is_left_out() -> None:
    shown = of_case(case(floor=1e-6, registers=32.0))
    assert "predicted, not measured" in shown
    assert "per thread" in shown
    assert "GPU time" not in shown
    assert "vs eager" not in shown
    assert "vs " not in shown.split("<p>")[0], "no library was timed"


def test_names_and_sentences_with_html_are_text() -> None:
    shown = of_kernel(HOSTILE, case(impl=HOSTILE, why=HOSTILE, limiter=HOSTILE, theoretical_occupancy=0.5),
                               HOSTILE)  # fmt: skip
    assert "<img" not in shown
    assert shown.count("&lt;img") == 5
