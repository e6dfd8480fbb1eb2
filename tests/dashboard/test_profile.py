"""The profile form: what it asks for, what it refuses, and what it says beside the button."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tilescope.jobs.job import Job
from tilescope.jobs.plan import Request, RequestError
from tilescope_dashboard.data import this_machine
from tilescope_dashboard.session.jobs import CANCELLED, DONE, FAILED, RUNNING, JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form.fields import ProfileFields
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.jobs.job_text import beside_the_button

from .conftest import field, said

ENTRY = {
    "name": "softmax", "kernel": "tilescope_kernels.softmax:SPEC", "passes": ["forward", "backward"],
    "workloads": [{"id": "128x1024-bf16", "label": "small", "elements": 131072}],
    "implementations": {"triton": {"available": True, "configs": [{"BLOCK": 1}]}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path))


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


def test_what_cannot_run_stands_greyed_below_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"events": "no GPU here", "ncu": "ncu is not installed"}
    monkeypatch.setattr(this_machine, "_unavailable", why.get)
    monkeypatch.setattr(this_machine.device, "detect", lambda: None)
    shown = ProfileFields()
    shown.offer(asyncio.run(this_machine.ask()))
    assert not why.keys() & set(field(shown, "collectors").options.values())
    for reason in why.values():
        assert reason in said(shown)
    liger = {"available": False, "configs": [], "requires": ["liger-kernel"]}
    shown.fill({**ENTRY, "implementations": {**ENTRY["implementations"], "liger": liger}})
    assert field(shown, "implementations").options == {"triton": "triton"}
    assert "not installed: pip install liger-kernel" in said(shown)


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
