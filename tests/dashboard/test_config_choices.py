"""Selectors of a sweep's parameters: which are seen at first, and that those set aside count as well."""

from itertools import product

import pandas as pd
import pytest
from tilescope.models import sweeps
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.views.autotune import Autotune

from . import conftest
from .conftest import RUN, field, grid

#: What one step of each parameter adds to the time.
COSTS = {"A": 1, "B": 64, "C": 2, "D": 32, "E": 4, "F": 16}


def cells(names: str) -> pd.DataFrame:
    configs = [dict(zip(names, steps, strict=True)) for steps in product((1, 2), repeat=len(names))]
    rows = [
        {**config, "config": str(config), "time": 1 + sum(COSTS[n] * config[n] for n in names) / 100}
        for config in configs
    ]
    case = {"kernel": "k", "impl": "triton", "pass": "forward", "workload": "8-fp32", "reason": "", "checked": True}
    known = dict.fromkeys((*sweeps.COLOURINGS, "time_source", "code_source", *sweeps.COUNTED))
    return pd.DataFrame([{**known, **case, **row} for row in rows]).astype(dict.fromkeys(sweeps.COLOURINGS, "float64"))


def opened(names: str, monkeypatch: pytest.MonkeyPatch) -> Autotune:
    monkeypatch.setattr(sweeps, "configs", lambda *_: cells(names))
    return conftest.opened(Autotune, run=RUN, kernel="matmul")


def held(shown: Autotune) -> dict[str, Choice]:
    """The selectors of parameters that are not drawn."""
    return {one.label: one for one in shown.__panel__().select(Choice) if "best of all" in one.options}


def test_cheap_parameters_are_behind_a_button_and_count(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = opened("ABCDEF", monkeypatch)
    axes = {field(shown, name).value for name in ("across", "down")}
    aside = shown.__panel__()[3][1]
    more = field(shown, f"{len(aside)} more parameters")
    assert held(shown).keys() == set("ABCDEF") - axes
    assert not aside.visible and {one.label for one in aside} == {"A", "C", "E"} - axes
    more.value = True
    assert aside.visible
    before = grid(shown).filled
    aside[0].value = "2"
    after = grid(shown).filled
    assert len(after) == len(before) / 2 and set(after[aside[0].label]) == {2}


def test_a_few_parameters_are_all_seen(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = opened("ABCDE", monkeypatch)
    assert len(held(shown)) == 3 and not shown.__panel__()[3][1].objects
