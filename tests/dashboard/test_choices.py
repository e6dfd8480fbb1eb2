"""What the profile form offers and refuses."""

import re
from typing import Any

import pytest
from tilescope import collectors
from tilescope.hardware import ceilings
from tilescope_dashboard.views.form import fields as choices
from tilescope_dashboard.views.form.fields import ProfileFields

from .conftest import field, said

HOSTILE = "<img src=x onerror=alert(1)>"


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "softmax", "kernel": "tilescope_kernels.softmax:SPEC", "passes": ["forward", "backward"],
        "workloads": [
            {"id": "8192x8192-fp32", "label": "large", "elements": 8192 * 8192},
            {"id": "0x8-fp32", "label": "", "elements": 0},
            {"id": "8x8-fp32", "label": "", "elements": 64},
        ],
        "implementations": {
            "triton": {"available": True, "configs": [{"BLOCK": 1}]}, "liger": {"available": False, "configs": [], "requires": ["liger-kernel"]},
        },
        **changes,
    }  # fmt: skip


def filled(**changes: Any) -> ProfileFields:
    shown = ProfileFields()
    shown.fill(entry(**changes))
    return shown


def test_smallest_workload_not_empty_is_chosen() -> None:
    workloads = field(filled(), "workloads")
    assert workloads.value == ["8x8-fp32"]
    assert workloads.options["large · 8192x8192-fp32"] == "8192x8192-fp32"
    assert list(workloads.options.values()) == ["8192x8192-fp32", "0x8-fp32", "8x8-fp32"]
    assert field(filled(workloads=entry()["workloads"][1:2]), "workloads").value == []


def test_missing_implementation_is_not_offered() -> None:
    shown = filled()
    assert field(shown, "implementations").options == {"triton": "triton"}
    assert "not installed: pip install liger-kernel" in said(shown)
    assert field(shown, "every config").visible
    others = {"eager": "torch.sum", "aten": "torch.sum", "compile": "torch.compile of eager"}
    shown = filled(implementations={i: {"available": True, "configs": [], "summary": s} for i, s in others.items()})
    assert not field(shown, "every config").visible
    offered = field(shown, "implementations").options
    assert list(offered.values()) == list(others)
    assert [name.rstrip("\u200b") for name in offered] == ["torch.sum", "torch.sum", "torch.compile"]


def test_choices_of_the_form() -> None:
    catalog = [entry(name="matmul", kernel="elsewhere:SPEC"), entry()]
    for known in ("softmax", "tilescope_kernels.softmax:SPEC"):
        assert choices.entry_of(catalog, known) is catalog[1]
    assert choices.entry_of(catalog, "soft") is None
    offered, refused = choices.targets(ceilings.PRODUCTS, "sm_75", entry(targets=["sm_90", "sm_100"]))
    assert set(refused) == set(ceilings.targets()) - {"sm_90", "sm_100"}
    for label, target in offered.items():
        assert label.endswith("not for softmax") == (target in refused)
    offered = choices.collectors([*collectors.COLLECTORS, "mine.own"])
    assert list(offered.values()) == [*collectors.COLLECTORS, "mine.own"]
    assert all(label.startswith(f"{name}: ") for label, name in offered.items() if name != "mine.own")
    assert offered["mine.own"] == "mine.own"


@pytest.mark.parametrize(
    ("may_launch", "trouble", "catalog", "found", "said"),
    [
        (False, "", [entry()], entry(), "Read only."),
        (True, HOSTILE, [], None, "&lt;img"),
        (True, "", [], None, "Reading the kernel library"),
        (True, "", [entry()], None, "Not in the library"),
    ],
)
def test_why_nothing_is_profiled(may_launch: bool, trouble: str, catalog: list[Any], found: Any, said: str) -> None:
    notice = choices.standing(may_launch, trouble, catalog, found)
    assert said in notice
    assert "<img" not in notice
    assert choices.standing(True, "", [entry()], entry()) == ""


def test_unavailable_choice_is_greyed_with_its_reason() -> None:
    greyed = choices.greyed({"compiler": None, "ncu": "no GPU", "events": "no GPU", "nsys": HOSTILE})
    boxes = re.findall(r'disabled aria-describedby="([^"]+)"> ([^<]+)</label>', greyed)
    assert [label for _, label in boxes] == ["ncu", "events", "nsys"]
    reasons = dict(re.findall(r'<p [^>]*id="([^"]+)">([^<]*)</p>', greyed))
    assert [reasons[place] for place, _ in boxes[:2]] == ["no GPU", "no GPU"]
    assert reasons[boxes[2][0]].startswith("&lt;img")
    assert "compiler" not in greyed
    assert "<img" not in greyed
    assert choices.greyed({"compiler": None}) == ""


def test_targets_are_named_by_product_own_first() -> None:
    offered, refused = choices.targets(ceilings.PRODUCTS)
    assert set(offered.values()) == set(ceilings.targets())
    assert offered["sm_90 · H200"] == "sm_90"
    assert refused == []
    here, _ = choices.targets(ceilings.PRODUCTS, "sm_90")
    assert next(iter(here.items())) == ("sm_90 · this machine", "sm_90")
    assert sorted(here.values()) == sorted(offered.values())
    assert choices.targets(ceilings.PRODUCTS, "sm_75")[0]["sm_75 · this machine"] == "sm_75"
