"""The profile form: what it offers, asks for and refuses, and what it says beside the button."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from tilescope import collectors
from tilescope.hardware import ceilings
from tilescope.jobs.job import Job
from tilescope.jobs.plan import Request, RequestError
from tilescope_dashboard.data import this_machine
from tilescope_dashboard.session.jobs import CANCELLED, DONE, FAILED, RUNNING, JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form import fields as choices
from tilescope_dashboard.views.form.fields import ProfileFields
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.jobs.job_text import beside_the_button

from .conftest import field, said

pytestmark = pytest.mark.usefixtures("own_runs")

ENTRY = {
    "name": "softmax", "kernel": "tilescope_kernels.softmax:SPEC", "passes": ["forward", "backward"],
    "workloads": [{"id": "128x1024-bf16", "label": "small", "elements": 131072}],
    "implementations": {"triton": {"available": True, "configs": [{"BLOCK": 1}]}},
}  # fmt: skip


def fields() -> ProfileFields:
    shown = ProfileFields()
    shown.fill(ENTRY)
    field(shown, "collectors").param.update(options={"compiler": "compiler"}, value=["compiler"])
    return shown


def test_fields_request_what_is_chosen() -> None:
    shown = fields()
    assert "128x1024-bf16" in field(shown, "another size").label
    field(shown, "another size").value = " 1823x781-fp32 "
    field(shown, "pass").value = ["forward"]
    request = shown.request(ENTRY)
    assert request == Request(("tilescope_kernels.softmax:SPEC",), ("triton",), ("128x1024-bf16", "1823x781-fp32"),
                              ("forward",), ("compiler",), target="sm_90", title="softmax")  # fmt: skip
    field(shown, "every config").value = True
    assert shown.request(ENTRY).configs == ("all",)
    field(shown, "another size").value, field(shown, "workloads").value, field(shown, "pass").value = "", [], []
    with pytest.raises(ValueError, match=r"^choose a workload and a pass\.$"):
        shown.request(ENTRY)


@pytest.mark.parametrize(
    ("size", "fits"),
    [("1823x781-fp32", True), (" 4x4-fp8-s3", True), ("", True), ("128x1024", False), ("128-bf16", False),
     ("2x3x4-bf16", False), ("12xfoo", False)],
)  # fmt: skip
def test_a_size_is_judged_while_one_types(size: str, fits: bool) -> None:
    shown = fields()
    field(shown, "another size").value_input = size
    assert field(shown, "another size").error_state != fits
    assert field(shown, "another size").helper_text == (
        "" if fits else "2 numbers with x between, then a dtype, as 128x1024-bf16"
    )


def test_choices_stay_until_another_kernel_comes() -> None:
    shown = fields()
    field(shown, "pass").value = ["forward"]
    shown.fill(ENTRY)
    assert field(shown, "pass").value == ["forward"]
    shown.fill({**ENTRY, "name": "other"})
    assert field(shown, "pass").value == ["forward", "backward"]
    field(shown, "target GPU").value = "sm_80"
    shown.fill({**ENTRY, "name": "fp8", "targets": ["sm_89", "sm_90"]})
    assert field(shown, "target GPU").value == "sm_90"
    assert "sm_80" in field(shown, "target GPU").disabled_options
    shown.fill(dict(ENTRY))
    assert field(shown, "target GPU").disabled_options == []


def test_what_cannot_run_stands_greyed_below_what_can(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"events": "no GPU here", "ncu": "ncu is not installed"}
    monkeypatch.setattr(this_machine, "_unavailable", why.get)
    shown = ProfileFields()
    shown.offer(asyncio.run(this_machine.ask()))
    assert not why.keys() & set(field(shown, "collectors").options.values())
    for reason in why.values():
        assert reason in said(shown)


def form(planner: Callable[[Request], Any]) -> ProfileForm:
    state = State(may_launch=True, catalog=[ENTRY], kernel="softmax")
    shown = ProfileForm(state, JobManager(planner, lambda *_: None))
    field(shown, "collectors").param.update(options={"compiler": "compiler"}, value=["compiler"])
    return shown


async def never(request: Request) -> Job:
    raise AssertionError(request)


def test_form_follows_the_kernel_of_the_page() -> None:
    shown = form(never)
    field(shown, "kernel").value = "rms_norm"
    assert shown.state.kernel == "rms_norm"
    shown.state.kernel = "not_in_the_library"
    assert field(shown, "Start profiling").disabled
    assert "Not in the library" in said(shown)
    field(shown, "Start profiling").param.trigger("clicks")
    assert shown.started is None


async def test_what_was_refused_is_said_beside_the_button() -> None:
    async def refuse(request: Request) -> Job:
        raise RequestError(f"softmax has no workload <b>{request.workloads[-1]}</b>")

    shown = form(refuse)
    field(shown, "another size").value = "banana"
    field(shown, "Start profiling").param.trigger("clicks")
    assert "is being profiled" in said(shown)
    while shown.started.active:
        await asyncio.sleep(0)
    shown._say()
    assert shown.started.status == FAILED
    assert "no workload &lt;b&gt;banana" in said(shown)


async def test_unopened_file_in_its_field_blocks_profiling() -> None:
    shown = form(never)
    field(shown, "own kernel").value = "nowhere/<b>.py:SPEC"
    field(shown, "Start profiling").param.trigger("clicks")
    assert shown.started is None
    assert said(shown).count("this server runs no files of your own") == 2


def test_a_running_job_is_told_where_to_look_at_it() -> None:
    assert "above the views" in beside_the_button(JobState(1, "softmax", status=RUNNING))
    # The progress says it, and offers the results.
    assert beside_the_button(JobState(1, "softmax", status=DONE)) == ""
    assert beside_the_button(JobState(1, "softmax", status=CANCELLED)) == ""
    job = JobState(1, "<i>", status=FAILED, error="<b>no</b>")
    assert "&lt;b&gt;no" in beside_the_button(job)
    assert "<i>" not in beside_the_button(job)


HOSTILE = "<img src=x onerror=alert(1)>"


def entry(**changes: Any) -> dict[str, Any]:
    """A kernel with more to choose from."""
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
    ("may_launch", "trouble", "catalog", "found", "why"),
    [
        (False, "", [entry()], entry(), "Read only."),
        (True, HOSTILE, [], None, "&lt;img"),
        (True, "", [], None, "Reading the kernel library"),
        (True, "", [entry()], None, "Not in the library"),
    ],
)
def test_why_nothing_is_profiled(may_launch: bool, trouble: str, catalog: list[Any], found: Any, why: str) -> None:
    notice = choices.standing(may_launch, trouble, catalog, found)
    assert why in notice
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
