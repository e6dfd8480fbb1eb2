"""The advice view: its cards, its empty states, the fusion form, and names that hold HTML."""

import re
from pathlib import Path

import pytest
from tilescope.collectors.ncu.rules import NcuRule
from tilescope.models import impossible
from tilescope.models.advice import NVIDIA, Bound, Evidence, Finding, nvidia_rules
from tilescope.models.advice.finding import AT_ROOF
from tilescope.models.faults import WRONG
from tilescope.table.case import Case
from tilescope.table.run import Failure
from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.topics import advice as topic
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.fusing import Fusing, FusionForm

from tests.profiles import made_up

from .conftest import RUN, field, opened
from .conftest import said as words

pytestmark = pytest.mark.usefixtures("in_runs")

HOSTILE = "<img src=x onerror=alert(1)>" + "very_long_template_name<int, " * 10


def finding(**changes: object) -> Finding:
    evidence = (Evidence("registers", 128, "count", "ncu"), Evidence("widest_load", 4, "byte", "compiler"))
    fields = {
        "rule": "r", "title": "A title", "remedy": "A remedy", "kernel": "k", "direction": "forward", "workload": "w",
        "impl": "triton", "config": "", "evidence": evidence, "bound": Bound(1.4, "a / b"), **changes,
    }  # fmt: skip
    return Finding(**fields)  # type: ignore[arg-type]


def test_card_shows_bound_evidence_and_remedy() -> None:
    shown = cards.cards([finding()])
    assert "A title" in shown
    assert "A remedy" in shown
    assert "<b>1.40×</b>29 % of GPU time, by this alone" in shown
    assert "<b>≤ 1.40×</b>up to 29 % of GPU time<" in cards.cards([finding(bound=Bound(1.4, "a / b", most=True))])
    assert "a / b" in shown
    assert "registers per thread" in shown
    assert "128 <span>ncu</span>" in shown
    assert "4 B <span>compiler</span>" in shown


def test_measured_and_predicted_are_never_drawn_alike() -> None:
    measured = finding()
    predicted = finding(evidence=measured.evidence[::-1])
    assert 'class="finding measured"' in cards.cards([measured])
    assert 'class="finding predicted"' in cards.cards([predicted])
    # The compiler's value keeps its mark in a measured finding too.
    assert cards.cards([measured]).count("class=guess") == 1


def test_card_without_bound_says_so() -> None:
    assert "speedup" not in cards.cards([finding(bound=None)])
    assert "nothing to gain here" in cards.cards([finding(rule=AT_ROOF[0], bound=None)])
    for rule in (WRONG, impossible.ROOF):
        wrong = finding(rule=rule, bound=None)
        shown = cards.cards([wrong])
        assert "nothing to gain" not in shown and not re.search(r"[·>(] ?measured|predicted[)<]", shown)
        assert '<div class="win">fix this first: the other numbers are wrong until then</div>' in cards.cards([wrong])
    assert "of the interval" in cards.cards([finding(bound=Bound(2, "x", "interval"))])
    assert cards.cards([]) == '<ol class="findings"></ol>'


def test_what_a_timed_cure_wins_is_not_called_a_bound() -> None:
    timed = finding(bound=Bound(1.25, "a / b", timed=True))
    assert "<b>1.25×</b>20 % of GPU time" in cards.cards([timed])


def test_impossible_finding_is_the_sentence() -> None:
    found = finding(rule="impossible-roof", title="Impossible: 9 TB/s from HBM", bound=None)
    said = topic.sentence([found], {"ncu"})
    assert said.title == "Impossible: 9 TB/s from HBM" and "Ignore the other numbers" in said.text
    assert topic.sentence([finding()], {"ncu"}).text != said.text
    assert "Impossible: 9 TB/s" in cards.cards([found])


@pytest.mark.parametrize("field", ["title", "remedy", "function"])
def test_html_in_a_finding_is_escaped(field: str) -> None:
    shown = cards.cards([finding(**{field: HOSTILE})])
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "<img" not in cards.cards([finding(bound=Bound(2, HOSTILE))])


def test_advice_view_follows_the_choice() -> None:
    shown = opened(Advice, run=RUN, kernel="softmax")
    assert {*shown.ours.stylesheets} >= {html_text.CSS, cards.CSS}
    assert field(shown, "case").value[0] == "triton"
    assert len(field(shown, "case").options) == 3 * 2 * 2
    eager = next(
        case for case in field(shown, "case").options.values() if case[0] == "eager" and case[2] == "16384x4096-bf16"
    )
    field(shown, "case").value = eager
    assert shown.state.case == "eager · forward · 16384x4096-bf16"
    assert "4 launches move" in words(shown)
    assert "dram" not in words(shown)  # labels, not column names
    assert "bytes read from HBM" in words(shown)
    shown.state.theme = "dark"
    assert field(shown, "case").value == eager
    shown.state.kernel = "not_in_any_run"
    assert "not_in_any_run has no run yet" in words(shown)
    assert not shown.body.visible
    shown.state.kernel = "softmax"
    assert field(shown, "case").visible


def test_views_of_a_kernel_that_does_not_compile_say_what_to_do(own_runs: Path) -> None:
    broken = Failure("mine/triton/forward/8-fp32", "compiler", "CompilationFailed: mine does not compile: line 6: no")
    facts = {name: {"file": "", "sha256": ""} for name in ("mine", "other")}
    rows = [Case("other", "triton", "forward", "8-fp32").row("registers", 32, "compiler", launch=0)]
    folder = made_up.written(own_runs, rows, kernels=facts, failures=(broken,))
    address = {"run": folder.name, "kernel": "mine"}
    assert words(opened(Advice, **address)).startswith("<h2>mine does not compile: line 6: no<")
    assert "also times a SPEC" in words(opened(Compare, **address))


def test_nvidias_rules_stand_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = opened(Advice, run=RUN, kernel="softmax")
    assert "Not collected" in words(shown)
    case = Case("softmax", *[field(shown, "case").value[i] for i in (0, 1, 2, 3)])
    rule = NcuRule(0, "f", "Occupancy", "TheoreticalOccupancy", "OPT", HOSTILE, 0.25, "global")
    monkeypatch.setattr(nvidia_rules, "of_run", lambda folder, kernels: list(nvidia_rules.findings(case, [rule])))
    shown.update()
    assert "Theoretical occupancy" in words(shown)
    assert "1.33×" in words(shown)
    assert "<img" not in words(shown)
    assert "Theoretical occupancy" not in shown.ours.object
    assert next(nvidia_rules.findings(case, [rule])).origin == NVIDIA


def test_the_form_answers_and_says_what_it_does_not_know() -> None:
    form = FusionForm()
    assert "2× by the bytes alone" in words(form)
    field(form, "chain").value = "softmax,<b>relu</b>"
    assert "This cannot be answered" in words(form)
    assert "<b>relu" not in words(form)
    field(form, "chain").value = "softmax,relu"
    field(form, "shape").value = "64x781-fp32"
    assert "rows start unaligned" in words(form)
    field(form, "shape").value = "64x781"
    assert "sizes and a dtype" in words(form)
    field(form, "shape").value = "64x780-fp8"
    field(form, "GPU").value = "sm_80"
    assert "sm_80 has no fp8 instructions" in words(form)


def test_fusing_says_what_the_next_operation_saves() -> None:
    shown = opened(Fusing, run=RUN, kernel="softmax")
    # 16384x4096 in bf16: the result is stored and loaded no more. Its eager implementation is several launches.
    assert "Fusing the next elementwise operation into softmax would save" in words(shown)
    assert "268 MB of HBM traffic" in words(shown) and "the result of 134 MB" in words(shown)
    assert "its operations one by one" in words(shown) and "scale, softmax: 2× by the bytes alone" in words(shown)
    shown.state.kernel = "matmul"
    assert "<h2>Fusing matmul</h2>" in words(shown) and "does not say how many bytes" in words(shown)
    shown.state.kernel = "not_in_any_run"
    assert "would save" not in words(shown)


def test_fusion_form_asks_about_the_kernel_once_a_case() -> None:
    form = FusionForm()
    form.about("matmul", "64x64x64-fp32")
    assert field(form, "chain").value == "add,relu,mul"
    form.about("softmax", "64x1024-fp32")
    assert "scale, softmax" in words(form) and field(form, "shape").value == "64x1024-fp32"
    field(form, "chain").value = "softmax,relu"
    form.about("softmax", "64x1024-fp32")
    assert field(form, "chain").value == "softmax,relu"
    # Another kernel's chain is none of the one before.
    form.about("matmul", "64x64x64-fp32")
    assert (field(form, "chain").value, field(form, "shape").value) == ("add,relu,mul", "16384x4096-bf16")
