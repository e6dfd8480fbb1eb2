"""The page of a watched script: its versions, the values that changed, the source's difference, and the widgets."""

import asyncio
import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import panel_material_ui as pmui
import pytest
from tilescope.models.advice import Finding
from tilescope.models.versions import Case, Pair
from tilescope.notebook.watching import Comparison, Version, Watch
from tilescope.runs import store
from tilescope_dashboard.components import version_panels
from tilescope_dashboard.data import best_run
from tilescope_dashboard.data.launched_code import numbered
from tilescope_dashboard.session import access, watching
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import versions as topic
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.watch import Watch as View

from . import synthetic
from .conftest import RUN, SCRIPT, Process, field, press, said

BEFORE = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\nh = 8\n"


def finding(rule: str, title: str, explanation: str = "") -> Finding:
    return Finding(rule, title, "", "k", "forward", "8-fp32", "triton", "", (), explanation=explanation)


def case(kernel: str = "k", findings: tuple[Finding, ...] = (), spread: Any = None, **values: float) -> Case:
    names = {"kernel": kernel, "impl": "triton", "pass": "forward", "workload": "8-fp32"}
    return Case(names, values, findings, spread)


def good(number: int, *cases: Case, text: str = BEFORE) -> Version:
    return Version(number, state="ready", cases=cases, texts={Path("/my.py"): text}, seconds=1.26)


def kinds(pair: Pair, old: str = "") -> dict[str, tuple[str, ...]]:
    return {value.label: tuple(value[1:]) for value in topic.values(pair, old)}


def test_values_changes_judged_by_metric() -> None:
    before = case(gpu_time=1e-3, registers=32.0, spill_bytes=0.0, theoretical_occupancy=1.0, shared_memory=0.0,
                  sector_efficiency_read=0.125, dram=1e6, spread=(0.99e-3, 1.01e-3))  # fmt: skip
    after = case(gpu_time=0.5e-3, registers=71.0, spill_bytes=64.0, theoretical_occupancy=0.4375, shared_memory=0.0,
                 sector_efficiency_read=1.0, dram=1e6, spread=(0.49e-3, 0.51e-3))  # fmt: skip
    assert kinds(Pair(before, after)) == {
        "GPU time": ("500 µs", "1.00 ms", "−50 %", topic.BETTER),
        "HBM bytes": ("1.00 MB", "", "same", topic.SAME),
        "registers": ("71", "32", "+39", topic.MOVED),
        "spilled bytes": ("64 B", "0 B", "+64 B", topic.WORSE),
        "shared memory": ("0 B", "", "same", topic.SAME),
        "occupancy": ("43.8 %", "100 %", "−56.2 points", topic.MOVED),
        "loaded sectors used": ("100 %", "12.5 %", "+87.5 points", topic.BETTER),
    }
    noisy = dataclasses.replace(after, values={"gpu_time": 0.995e-3}, spread=(0.98e-3, 1.005e-3))
    assert kinds(Pair(before, noisy))["GPU time"] == ("995 µs", "1.00 ms", "−0.5 %, noise", topic.NOISE)


def test_values_awaited_are_old_ones() -> None:
    before = case(gpu_time=1e-3, registers=32.0)
    assert kinds(Pair(before, case(registers=40.0)), "waiting") == {
        "GPU time": ("1.00 ms", "", "waiting", topic.OLD), "registers": ("40", "32", "+8", topic.MOVED)
    }  # fmt: skip
    assert kinds(Pair(before, case(registers=40.0)))["GPU time"] == ("–", "1.00 ms", "", topic.MOVED)


@pytest.mark.parametrize(
    ("now", "title"),
    [
        ({"gpu_time": 0.5e-3}, "v2 takes 500 µs, 2× faster than v1"),
        ({"gpu_time": 2e-3}, "v2 takes 2.00 ms, 2× slower than v1"),
        ({"registers": 71.0, "sector_efficiency_read": 0.999}, "v2 against v1: registers 71 (was 32)"),
        ({"registers": 32.0}, "v2 against v1: no value changed"),
    ],
)
def test_sentence_leads_with_time(now: dict[str, float], title: str) -> None:
    before = case(gpu_time=1e-3, registers=32.0, sector_efficiency_read=1.0)
    pair = Pair(before, case(**now))
    assert topic.sentence(good(2, case(**now)), good(1, before), pair).title == title


def test_sentence_failed_version_says_what_stays() -> None:
    failed = Version(3, state="failed", error="k does not compile: line 8: n_col is not defined. The line: m = n_col.")
    assert topic.sentence(failed, good(2, case()), None) == (
        "v3: k does not compile: line 8: n_col is not defined", "The line: m = n_col. v2 stays the last good version."
    )  # fmt: skip
    assert topic.sentence(failed, None, None).text.endswith("No version is good yet.")
    assert topic.badge(Comparison(None, failed, [], [])) == "line 8: wrong"


def test_sentence_running_version_says_how_long() -> None:
    running = Version(2, doing="compiling k")
    assert topic.sentence(running, good(1, case()), None) == (
        "v2 is running: compiling k", "Grey values are of v1, which took 1.3 s."
    )  # fmt: skip
    assert topic.sentence(Version(1), None, None, 4.2).text == "The last run of this script took 4 s."


def test_took_is_from_start_to_description(tmp_path: Path) -> None:
    described = synthetic.write_run(tmp_path, RUN) / "run.json"
    (run,) = store.list_runs([tmp_path])
    began = datetime.fromisoformat(run.started).timestamp()
    for later, seconds in ((5, 5), (-1, None), (1e6, None)):
        os.utime(described, (began + later,) * 2)
        assert best_run.took(run) == seconds


def test_badge_says_what_changed_most() -> None:
    def of(before: Case, after: Case) -> str:
        return topic.badge(Comparison(good(1, before), good(2, after), [Pair(before, after)], []))

    assert of(case(gpu_time=1e-3), case(gpu_time=0.5e-3)) == "500 µs 2×"
    assert of(case(registers=32.0), case(registers=71.0)) == "registers +39"
    assert of(case(registers=32.0), case(registers=32.0)) == "same"
    assert topic.badge(Comparison(None, Version(1), [], [])) == "running …"


def test_source_lines_near_change_and_error() -> None:
    after = BEFORE.replace("b = 2", "b = 3")
    before, now = ({"my.py": numbered(text), "other.py": numbered("x")} for text in (BEFORE, after))
    shown = topic.source(before, now, {("my.py", 8): "wrong"})
    assert list(shown) == ["my.py"]
    signs = [(line.sign, line.number) for line in shown["my.py"] if line.sign or line.wrong]
    assert signs == [("-", 2), ("+", 2), ("", 8)]
    assert [line.number for line in topic.source({}, now, {})["my.py"]] == list(range(1, 9))
    markup = version_panels.panels({"my.py": [topic.SourceLine("+", 1, "<b>", "<i>")]}, ("v1", ""), [], dark=True)
    markup += version_panels.printed("<b>\n")
    assert "Printed: 1 line<" in markup and not version_panels.printed("")
    assert "&lt;b&gt;" in markup and "&lt;i&gt;" in markup and "<b>" not in markup


def test_place_prefers_line_with_file() -> None:
    assert topic.place("k reads past the end in line 3. Line 7 of lib.py: x", "my.py") == ("lib.py", 7)
    assert topic.place("line 8: arange", "my.py") == ("my.py", 8)
    assert topic.place("it ended", "my.py") == ("my.py", 0)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Watch]:
    """A watched script with two good versions and a failed one, which no process made."""
    (tmp_path / "my.py").write_text(BEFORE)
    watch = Watch(tmp_path / "my.py")
    coalesced, slow = (
        case("k", registers=32.0),
        case("k", (finding("uncoalesced-loads", "Uncoalesced"),), registers=40.0),
    )
    watch.versions += [
        good(1, coalesced, case("other", registers=8.0)), good(2, slow, text=BEFORE.replace("b = 2", "b = 3")),
        Version(3, state="failed", error="my.py cannot be run: line 4: no such name", texts={tmp_path / "my.py": BEFORE}),
    ]  # fmt: skip
    watching.shared().script = watch
    yield watch
    watching.shared().script = None


def shown(**address: str) -> View:
    view = View(State(view="watch", may_launch=True, **address))
    view.refresh()
    assert "could not be drawn" not in view.head.object, view.head.object
    return view


def test_view_failed_version_keeps_good_values(script: Watch) -> None:
    text = said(shown())
    assert "v3: my.py cannot be run" in text and "v2 stays the last good version" in text
    assert re.search(r'class="old"><dt>registers</dt><dd>40</dd><dd><em>of v2</em>', text)
    assert "no such name</td>" in text and "<h3>Findings of v2<" in text
    # A screen reader says the headline alone, from a part of the page that stays.
    assert shown().head.get_root().html_attributes == {"role": "status"} and 'role="alert"' not in text
    del script.versions[:2]
    assert "No version is good yet" in said(shown()) and "Findings" not in said(shown())


def test_view_output_waits_for_missing_results(script: Watch) -> None:
    running, over = script.versions[0], script.versions[1]
    for version in (running, over):
        version.output, version.unmade, version.why = "AssertionError\n", "k_kernel", "k_kernel, line 2: no end"
    running.doing = "running every program of k_kernel"
    text = said(shown(version="1"))
    assert "Still running every program of k_kernel." in text and "AssertionError" not in text
    assert "line 2: no end</td>" in text
    running.why = "it takes longer"  # which names no line: it may be right
    assert "is void" not in said(shown(version="1"))
    text = said(shown(version="2"))
    assert "Not all programs of k_kernel ran" in text and "line 2: no end</td>" in text and "AssertionError" in text
    over.state, over.error = "failed", "k_kernel reads past the end"  # which says why, once
    assert "is void" not in said(shown(version="2"))


def test_view_compares_chosen_versions(script: Watch) -> None:
    view = shown(version="2")
    text = said(view)
    assert "v2 against v1: registers 40 (was 32)" in text
    assert 'class="new"><b>new</b><p>Uncoalesced' in text
    field(view, "version").value = 1
    assert view.state.version == "1" and "v1: no problem found" in said(view)
    field(view, "version").value = 3
    assert not view.state.version


def test_view_pairs_launches_by_hand(script: Watch) -> None:
    view = shown(version="2")
    other = field(view, "paired by name")
    assert list(other.options) == ["nothing", "k 8-fp32", "other 8-fp32"]
    other.value = "1"
    view.fresh = False
    view.refresh()
    assert "registers 40 (was 8)" in said(view)
    assert field(view, "paired by hand").value == "1"


def test_view_pins_names_and_deletes(script: Watch) -> None:
    view = shown(version="1")
    press(view, "Pin")
    assert script.pinned is script.versions[0] and not view.state.version
    view.state.version = "2"
    field(view, "name").value = "before tiling"
    assert script.versions[1].name == "before tiling"
    press(view, "Delete")
    assert [version.number for version in script.versions] == [1, 3]


def test_view_without_script_starts_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(access.OWN_FILES, raising=False)
    assert "runs no files of your own" in said(shown())
    (tmp_path / "mine.py").write_text("print(1)")
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    view = shown()
    assert "tilescope watch my.py" in said(view)
    assert re.search(r"v2 takes [\d.]+ µs, [\d.]+× faster than v1. From strided_copy, recorded", said(view))
    assert "unit_copy_kernel" in said(view) and "<b>reached</b>" in said(view)
    assert field(view, "script").options == ["mine.py"]
    (listed,) = view.body.select(pmui.MenuList)
    assert [item["label"] for item in listed.items] == ["mine.py"]
    press(view, "Watch")
    assert "Not watched:</b> choose a script" in said(view)
    field(view, "script").value = "../other.py"
    press(view, "Watch")
    assert "lies outside of" in said(view)

    async def pressed() -> None:
        field(view, "script").value = "mine.py"
        press(view, "Watch")
        assert watching.shared().on and watching.shared().script.script == tmp_path / "mine.py"
        await watching.shared().end()
        assert not watching.shared().on

    asyncio.run(pressed())
    watching.shared().script = None


def test_visitor_from_elsewhere_changes_no_version(script: Watch) -> None:
    view = View(State(view="watch", version="2"))
    view.refresh()
    assert "registers 40 (was 32)" in said(view)
    assert all(field(view, label).disabled for label in ("name", "Pin", "Delete"))


def test_form_watches_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("print(1)")
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))

    async def pressed() -> State:
        form = ProfileForm(State(may_launch=True, panel="profile"), JobManager())
        assert field(form, "own kernel").options == ["mine.py"]
        field(form, "own kernel").value = "mine.py"
        press(form, "Watch")
        assert watching.shared().script.script == tmp_path / "mine.py"
        await watching.shared().end()
        return form.state

    state = asyncio.run(pressed())
    assert (state.view, state.panel) == ("watch", "")
    watching.shared().script = None


#: Stands for a browser: keeps the page that it is told to open.
BROWSER = "import shutil, sys; shutil.copy(sys.argv[1].removeprefix('file://'), 'opened.html')"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Process]:
    """``tilescope watch my.py`` in a folder. It opens a page in a browser that does nothing."""
    (tmp_path / "my.py").write_text(SCRIPT)
    (tmp_path / "browser.py").write_text(BROWSER)
    process = Process(
        tmp_path, "-m", "tilescope", "watch", "my.py", TILESCOPE_RUNS=str(tmp_path / "runs"), DISPLAY=":9",
        BROWSER=f"{sys.executable} browser.py %s",
    )  # fmt: skip
    yield process
    assert "Traceback" not in process.stop()


@pytest.mark.browser
def test_command_opens_page_that_follows_saves(watched: Process, tmp_path: Path, chromium: Any) -> None:
    opened, link = tmp_path / "opened.html", re.compile(r"url=(http[^\"]+)")
    address = watched.until(lambda: link.search(opened.read_text()) if opened.exists() else None)[1]
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.get_by_role("heading", name="v1: ").wait_for()
    (tmp_path / "my.py").write_text(SCRIPT.replace("128", "256").replace("scale", "renamed"))
    page.get_by_text("Grey values are of v1").wait_for()
    page.get_by_role("heading", name="v2 against v1").wait_for()
    page.get_by_label("paired by place with").wait_for()
    (tmp_path / "my.py").write_text(SCRIPT.replace("mask=i < n)\n", "mask=i < m)\n"))
    page.get_by_role("heading", name="v3: scale does not compile").wait_for()
    page.get_by_role("button", name="v1").press("Enter")
    page.get_by_role("heading", name="v1: ").wait_for()
    assert "version=1" in page.url
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("Open its run", "Copy link"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, name
    page.close()
