"""Selectors of a sweep's parameters: which are seen at first, and that those set aside count as well."""

from itertools import product

import pandas as pd
from tilescope.models import sweeps
from tilescope_dashboard.views.config_choices import ConfigChoices

#: What one step of each parameter adds to the time.
COSTS = {"A": 1, "B": 64, "C": 2, "D": 32, "E": 4, "F": 16}


def cells(names: str) -> pd.DataFrame:
    configs = [dict(zip(names, steps, strict=True)) for steps in product((1, 2), repeat=len(names))]
    rows = [{**config, "time": 1 + sum(COSTS[n] * config[n] for n in names) / 100} for config in configs]
    case = {"kernel": "k", "impl": "triton", "pass": "forward", "workload": "8-fp32", "config": "", "reason": ""}
    known = dict.fromkeys((*sweeps.COLOURINGS, "time_source", "code_source", *sweeps.COUNTED))
    return pd.DataFrame([{**known, **case, **row} for row in rows]).astype(dict.fromkeys(sweeps.COLOURINGS, "float64"))


def labels(widgets: list) -> set[str]:
    return {widget.label for widget in widgets}


def test_cheap_parameters_are_behind_a_button_and_count() -> None:
    drawn = []
    shown = ConfigChoices(lambda: drawn.append(shown.held), lambda: None)
    shown.fill(cells("ABCDEF"))
    seen, aside = labels(shown.others.objects), labels(shown.aside.objects)
    assert seen | aside == set("ABCDEF") - {shown.across, shown.down}
    assert seen == {"B", "D", "F"} - {shown.across, shown.down}
    assert shown.more.label == f"{len(aside)} more parameters"
    assert not shown.aside.visible
    shown.more.value = True
    assert shown.aside.visible
    widget = shown.aside.objects[0]
    widget.value = "2"
    assert drawn == [{widget.label: "2"}]


def test_a_few_parameters_are_all_seen() -> None:
    shown = ConfigChoices(lambda: None, lambda: None)
    shown.fill(cells("ABCDE"))
    assert len(shown.others.objects) == 3
    assert not shown.more.visible
    assert not shown.aside.objects
