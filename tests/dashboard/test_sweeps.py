"""Sweeps over configs: what is the best, what tells configs apart, the selectors of parameters, and what is said without a sweep."""

import asyncio
import dataclasses
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from bokeh.models import HoverTool
from tilescope.jobs.plan import Request
from tilescope.models import sweeps
from tilescope.notebook.opening import open_file
from tilescope.runs import changes, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure
from tilescope.tuning import memory, race
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.session import jobs
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import autotune as topic
from tilescope_dashboard.views.autotune import Autotune, otherwise, sweeping

from tests.profiles import made_up
from tests.recorded import recorded

from .conftest import PREDICTED, RUN, field, grid, opened
from .conftest import said as words

SWEEP = {
    "impl": "triton", "pass": "forward", "workload": "8-fp32", "reason": "", "time_source": "", "code_source": "",
    "count_source": "", "checked": True,
}  # fmt: skip


def swept(*configs: tuple[int, int, float, float]) -> pd.DataFrame:
    """Of WARPS, STAGES, registers and shared memory each."""
    return pd.DataFrame(
        [
            {**SWEEP, "config": f"WARPS={w},STAGES={s}", "WARPS": w, "STAGES": s, "registers": r, "shared_memory": m}
            for w, s, r, m in configs
        ]
    )


GRID = swept((4, 1, 27, 100), (4, 2, 27, 200), (8, 1, 27, 100), (8, 2, 27, 200))


def test_axes_are_parameters_that_matter() -> None:
    assert topic.most_telling(GRID, ["registers", "shared_memory"]) == "shared_memory"
    assert topic.most_telling(GRID, ["registers"]) == "registers"
    assert topic.most_telling(GRID, []) is None
    assert topic.axes(GRID, "shared_memory") == ["STAGES", "WARPS"]
    assert topic.axes(GRID, None) == ["WARPS", "STAGES"]
    hardly = GRID.assign(time=[1.0, 1.5, 1.01, 1.51])
    assert topic.axes(hardly, "time") == ["STAGES", "WARPS"]
    costs = {f"P{number}": (12 - number) / 100 for number in range(12)}
    assert sweeps.costs(costs) == ["P0 +12 %", "P1 +11 %", "P2 +10 %", "P3 +9.0 %", "the other 8 no more"]
    assert sweeps.costs({"P": 0.1, "Q": 0.0}) == ["P +10 %", "Q nothing"]


@pytest.mark.parametrize(("column", "said", "stars"), [
    ("registers", "All 4 configs have the same registers: 27", 0), ("shared_memory", "(100 registers)", 2),
])  # fmt: skip
def test_where_all_are_alike_none_is_best(column: str, said: str, stars: int) -> None:
    rows = sweeps.ranked(GRID, "triton · forward · 8-fp32", {}, column, less=True)
    shown = topic.grid(rows, "WARPS", "STAGES")
    assert shown["best"].sum() == stars
    assert said in topic.sentence(rows, shown, "registers", "count").title
    # A scale with one value at both of its ends tells nothing.
    assert len(autotune(shown, "WARPS", "STAGES", "count", LIGHT).below) == (2 if stars else 1)


@pytest.mark.parametrize(("slowest", "close"), [(132.1e-6, True), (140e-6, False)])
def test_autotune_says_where_choice_hardly_matters(slowest: float, close: bool) -> None:
    timed = GRID.assign(time=[131.2e-6, 131.4e-6, 131.9e-6, slowest])
    rows = sweeps.ranked(timed, "triton · forward · 8-fp32", {}, "time", less=True)
    shown = topic.grid(rows, "WARPS", "STAGES")
    said = topic.sentence(rows, shown, "time", "second").text
    assert ("The cells lie within 0.69 %: the choice hardly matters here." in said) is close
    plot = autotune(shown, "WARPS", "STAGES", "second", LIGHT)
    texts = plot.select_one({"name": "cells"}).data_source.data["text"]
    assert texts[0] == ("131.2 µs" if close else "131 µs")
    assert len(plot.below) == (1 if close else 2)


def test_configs_are_coloured_by_percent_over_the_best() -> None:
    timed = GRID.assign(time=[128e-6, 140e-6, 183e-6, 2.0])
    rows = sweeps.ranked(timed, "triton · forward · 8-fp32", {}, "time", less=True)
    plot = autotune(topic.grid(rows, "WARPS", "STAGES"), "WARPS", "STAGES", "second", LIGHT)
    drawn = plot.select_one({"name": "cells"})
    assert list(drawn.data_source.data["over"]) == ["best", "+9.4 %", "+43 %", "15,625×"]
    # One that is far off leaves the others their colours.
    assert [round(place, 2) for place in drawn.data_source.data["place"][:3]] == [0, 0.13, 0.52]
    bar = plot.below[1]
    assert bar.title == "over the best, 128 µs"
    assert list(bar.major_label_overrides.values()) == ["best", "+10 %", "+25 %", "+50 %", "≥ +100 %"]
    # The bar's places are the cells': +43 % stands at 0.52 on both.
    assert (bar.color_mapper.low, bar.color_mapper.high) == (0, 1)
    assert [round(place, 2) for place in bar.major_label_overrides] == [0, 0.14, 0.32, 0.58, 1]
    # Noise has no colours, and of a best of 0 there is no percentage.
    alike = sweeps.ranked(
        timed.assign(time=[100, 100.5, 100.7, 101]), "triton · forward · 8-fp32", {}, "time", less=True
    )
    shown = autotune(topic.grid(alike, "WARPS", "STAGES"), "WARPS", "STAGES", "second", LIGHT)
    drawn = shown.select_one({"name": "cells"})
    assert max(drawn.data_source.data["place"]) < 0.11
    # As bright as the numbers on them are dark.
    assert drawn.glyph.fill_color.transform.high == 1 and set(drawn.data_source.data["ink"]) == {"#000000"}
    spilling = sweeps.ranked(timed.assign(spills=[0, 4, 8, 16]), "triton · forward · 8-fp32", {}, "spills", less=True)
    shown = autotune(topic.grid(spilling, "WARPS", "STAGES"), "WARPS", "STAGES", "byte", LIGHT)
    assert shown.select_one({"name": "cells"}).data_source.data["place"].tolist() == [0, 0.25, 0.5, 1]
    assert list(shown.below[1].major_label_overrides.values()) == ["0 B", "8 B", "16 B"]


def test_autotune_sentence_names_costs_and_gain() -> None:
    timed = GRID.assign(time=[1e-6, 1.1e-6, 2e-6, 2.2e-6], time_source="events, gpu time")
    rows = sweeps.ranked(timed, "triton · forward · 8-fp32", {}, "time", less=True)
    # Its own column is none.
    assert {name: round(part, 3) for name, part in sweeps.effects(rows, less=True).items()} == {
        "WARPS": 1,
        "STAGES": 0.1,
    }
    default = pd.DataFrame([{"time": 1.5e-6, "time_source": "events, gpu time"}])
    assert sweeps.gain(rows, default) == pytest.approx(1.5)
    assert sweeps.gain(rows, default.assign(time_source="events, interval")) is None
    assert sweeps.gain(rows, default.head(0)) is None
    said = topic.sentence(rows, rows, "time", "second", 1.5)
    assert said.title == "Best of 4: WARPS=4, STAGES=1 (1.00 µs, 50 % faster than the default)"
    assert "What matters most: WARPS (a wrong value costs 100 %), STAGES (10 %)." in said.text


def test_autotune_copies_chosen_or_best_config() -> None:
    view = opened(Autotune, run=recorded("norms: autotune sweeps"), kernel="add_rms_norm")
    configs = [f'triton.Config({{"PROGRAMS": {n}}}, num_warps=32)' for n in grid(view).value["PROGRAMS"]]
    copy = field(view, "Copy")
    assert copy.description == f"{copy.label}: {configs[0]}" and copy.label == "Copy best config"
    grid(view).selection = [2]
    assert copy.description == f"{copy.label}: {configs[2]}" and copy.label == "Copy chosen config"
    grid(view).selection = []
    assert copy.label == "Copy best config"


def test_no_config_of_code_that_is_gone_is_offered(own_runs) -> None:
    declared = {"file": "tilescope_kernels/reductions/row_sum.py", "sha256": "0"}
    for digest, gone in (("0", True), (changes.today(store.source_file(declared["file"]))["row_sum_kernel"], False)):
        case = Case("row_sum", "triton", "forward", "8x8-fp32")
        at = {"launch": 0, "function": "row_sum_kernel"}
        rows = [
            dataclasses.replace(case, config=f"BLOCK={n}").row("gpu_time", n * 1e-6, "torch_profiler", sample=0, **at)
            for n in (8, 16)
        ]
        kernels = {"row_sum": {**declared, "functions": {"row_sum_kernel": digest}}}
        folder = made_up.written(own_runs, rows, store.new_id(), kernels)
        view = opened(Autotune, run=folder.name, kernel="row_sum")
        assert "Best of 2" in words(view)
        assert ("The code has changed since this sweep, so no config is offered" in words(view)) == gone
        assert ("but the code has changed since" in str(view.head.object)) == gone
        assert bool(field(view, "Copy").description) != gone


@pytest.mark.parametrize(("today", "offered"), [("row_sum_kernel", True), ("row_sum_pieces_kernel", False), ("", True)])
def test_only_configs_of_what_the_default_launches_are_offered(own_runs, today: str, offered: bool) -> None:
    case = Case("row_sum", "triton", "forward", "8x8-fp32")
    swept = [dataclasses.replace(case, config=f"ROWS={n}") for n in (8, 16)]
    rows = [
        one.row("gpu_time", 1e-6 * (n + 1), "torch_profiler", sample=0, launch=0, function=function)
        for n, (one, function) in enumerate([*((one, "row_sum_kernel") for one in swept), (case, today)])
        if function
    ]
    view = opened(
        Autotune, run=made_up.written(own_runs, rows, kernels={"row_sum": {"file": ""}}).name, kernel="row_sum"
    )
    said = (
        "These are configs of row_sum_kernel, and the default launches row_sum_pieces_kernel, so no config is offered."
    )
    assert (said in words(view)) != offered
    assert bool(field(view, "Copy").description) == offered


def test_helions_words_are_values_of_parameters(tmp_path) -> None:
    log = Path(__file__).parents[1] / "profiles" / "fixtures" / "foreign" / "helion_autotune.csv"
    cells = sweeps.configs(open_file(log, tmp_path).table, (), "sm_90")
    columns = {column.name: column.unit for column in topic.columns(cells, sweeps.parameters(cells))}
    assert columns["pid_type"] == "text"
    assert columns["num_warps"] == "count"
    assert set(cells["maxnreg"].dropna()) == {128.0}  # what other configs leave open is absent there
    rows = sweeps.ranked(cells, next(iter(sweeps.names(cells))), {"pid_type": "flat"}, "time", less=True)
    every = sweeps.ranked(cells, next(iter(sweeps.names(cells))), {}, "time", less=True)
    assert sweeps.costing(every) == "costs at most", "not every combination was tried"
    code = sweeps.as_code(rows["config"].iloc[0], rows["time_source"].iloc[0])
    assert code.startswith("helion.Config(block_sizes=[128, 128, 64], indexing=['pointer', 'tensor_descriptor'], ")
    figure = autotune(topic.grid(rows, "pid_type", "num_warps"), "pid_type", "num_warps", "second", LIGHT)
    assert list(figure.x_range.factors) == ["flat"]


def test_race_configs_say_why_they_were_not_timed(tmp_path) -> None:
    def raced(config: str, samples: tuple[float, ...], reason: str, registers: int) -> Case:
        case = Case("softmax", "triton", "forward", "8-fp32", config)
        kernel = {
            "function": "k", "target": "sm_90", "registers": registers, "shared_memory": 64, "block_threads": 128, "barriers": 1,
            "spill_bytes_stored": 0, "spill_bytes_loaded": 0, "grid_blocks": 8,
        }  # fmt: skip
        problem = memory.Problem("softmax/triton", "d", "('forward', 'fp32', 8)", "NVIDIA H200", "", "v")
        race.write(
            tmp_path / f"{config}.json", problem, memory.Timing(samples, reason, "", {"kernels": [kernel]}), False
        )
        return case

    cases = [raced("B=1,num_warps=4", (2e-6, 3e-6), "", 32), raced("B=2,num_warps=4", (9e-6,), "slower than the leader by 200%", 64),
             raced("B=4,num_warps=4", (), "not timed: at best 9 µs, and the leader takes 2.5 µs", 128),
             raced("", (4e-6,), "", 32)]  # fmt: skip
    artefacts = [tmp_path / f"{case.config}.json" for case in cases]
    table = pd.concat([race.parse(artefact, case) for artefact, case in zip(artefacts, cases, strict=True)])
    failed = [
        Failure(case.id, "race", why) for case, at in zip(cases, artefacts, strict=True) if (why := race.failure(at))
    ]
    cells = sweeps.configs(table, failed, "sm_90")
    rows = sweeps.ranked(cells, "triton · forward · 8-fp32", {}, "time", less=True)
    assert list(rows["config"]) == ["B=1,num_warps=4", "B=2,num_warps=4", "B=4,num_warps=4"]
    assert list(rows["registers"]) == [32, 64, 128], "what was not timed has its resources all the same"
    assert rows["reason"].iloc[2] == "race: not timed: at best 9 µs, and the leader takes 2.5 µs"
    assert sweeps.gain(rows, sweeps.defaults(table)) == pytest.approx(4 / 2.5)
    assert topic.listed(rows)["sources"].iloc[0] == "events (interval), compiler"


def test_a_sweep_says_that_its_results_were_not_checked() -> None:
    case = Case("k", "triton", "forward", "8-fp32", "BLOCK=1")
    timed = [
        row
        for config, time in (("BLOCK=1", 1e-6), ("BLOCK=2", 2e-6))
        for row in [
            dataclasses.replace(case, config=config).row("gpu_time", time, "torch_profiler", launch=0, function="f")
        ]
    ]
    for more, told in (([], True), ([case.row("relative_error", 0.0, "check")], False)):
        cells = sweeps.configs(schema.frame(timed + more))
        assert cells["checked"].tolist() == [not told, False]
        assert sweeps.parameters(cells) == ["BLOCK"]
        rows = sweeps.ranked(cells, "triton · forward · 8-fp32", {}, "time", less=True)
        assert ("did not compare their results" in topic.sentence(rows, rows, "time", "second").text) is told


def test_counted_configs_show_bytes_and_longest_stall() -> None:
    best, other = (Case("softmax", "triton", "forward", "8x8-bf16", f"WARPS={warps},STAGES=1") for warps in (4, 8))
    waits = {"stall_long_scoreboard": 6.0, "stall_selected": 1.0, "stall_not_selected": 2.0, "stall_wait": 1.0}
    counted = {"dram_bytes_read": 3e6, "dram_bytes_written": 1e6, **waits}
    rows = [case.row("interval", value, "events", sample=0) for case, value in ((best, 1e-3), (other, 2e-3))]
    rows += [best.row(metric, value, "cupti", launch=0, function="f") for metric, value in counted.items()]
    cells = sweeps.configs(schema.frame(rows))
    first, second = cells.to_dict("records")
    assert (first["hbm_bytes"], first["longest_stall"], first["count_source"]) == (4e6, "Long Scoreboard 60 %", "cupti")
    assert pd.isna(second["hbm_bytes"]) and pd.isna(second["longest_stall"])
    assert {"hbm_bytes", "longest_stall"} <= {column.name for column in topic.columns(cells, ["WARPS"])}
    assert sweeps.parameters(cells) == ["WARPS"]
    shown = sweeps.ranked(cells, sweeps.names(cells)[0], {}, "time", True).assign(best=[True, False])
    assert topic.listed(shown)["sources"][0] == "events (interval), cupti"
    drawn = autotune(shown, "WARPS", "STAGES", "second", LIGHT)
    (hover,) = drawn.select({"type": HoverTool})
    assert "longest stall @longest_stall" in hover.tooltips
    (cell,) = drawn.select({"name": "cells"})
    assert list(cell.data_source.data["longest_stall"]) == ["Long Scoreboard 60 %", "–"]
    plain = autotune(shown.drop(columns=["hbm_bytes", "longest_stall"]), "WARPS", "STAGES", "second", LIGHT)
    assert "stall" not in plain.select({"type": HoverTool})[0].tooltips


def test_a_case_that_was_not_swept_is_said_before_anothers_sweep() -> None:
    for workload, said in (("2048x65536-bf16", True), ("8192x16384-bf16", False)):
        state = State(kernel="softmax", view="autotune")
        state.choose(workload=workload, direction="forward", impl="triton")
        view = Autotune(state)
        view.refresh()
        shown = f"{workload} was not swept; this is triton · forward · 8192x16384-bf16." in words(view)
        assert shown == said
        assert "Best of " in words(view)


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


def with_parameters(names: str, monkeypatch: pytest.MonkeyPatch) -> Autotune:
    monkeypatch.setattr(sweeps, "configs", lambda *_: cells(names))
    return opened(Autotune, run=RUN, kernel="matmul")


def held(shown: Autotune) -> dict[str, Choice]:
    """The selectors of parameters that are not drawn."""
    return {one.label: one for one in shown.__panel__().select(Choice) if "best of all" in one.options}


def test_cheap_parameters_are_behind_a_button_and_count(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = with_parameters("ABCDEF", monkeypatch)
    axes = {field(shown, name).value for name in ("across", "down")}
    aside = shown.body[1]
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
    shown = with_parameters("ABCDE", monkeypatch)
    assert len(held(shown)) == 3 and not shown.body[1].objects


async def test_a_sweep_is_said_to_be_under_way_as_long_as_it_is(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def planner(_: Request) -> SimpleNamespace:
        return SimpleNamespace(cases=(), collectors=())

    async def run(*_: Any) -> Path:
        await release.wait()
        return Path("runs/x")

    manager = JobManager(planner, run)
    other = manager.start(Request(kernels=("softmax",)))
    assert sweeping(manager.jobs, "softmax") is None  # a profile of a kernel's own choice
    job = manager.start(Request(kernels=("/my kernels/m.py:softmax",), configs=("all",)))
    assert sweeping(manager.jobs, "softmax") is job
    assert sweeping(manager.jobs, "matmul") is None
    state = State(run=PREDICTED, kernel="softmax")
    state.runs = [run for run in state.runs if not run.recorded]  # one of those has a sweep
    monkeypatch.setattr("tilescope_dashboard.views.autotune.shared", lambda: manager)
    shown = Autotune(state)
    shown.refresh()
    assert "Those of softmax are being profiled" in words(shown)
    release.set()
    while other.active or job.active:
        await asyncio.sleep(0)
    assert "being profiled" not in words(shown)
    assert "There are no configs of softmax" in words(shown) or "declares no configs" in words(shown)


def test_a_hostile_name_stays_text(in_runs: None) -> None:
    state = State(run=PREDICTED, kernel="<script>x")
    assert "<script>" not in otherwise(state, ())
    assert jobs.shared() is jobs.shared()
