"""What a page asks for while somebody types: the newest, one at a time, and nothing after the page has gone."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tilescope.jobs import questions
from tilescope_dashboard.session import access, latest_request
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.session.latest_request import LatestRequest
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form import user_kernel
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.form.user_kernel import UserKernelField

from .conftest import field, said


class Work:
    """Counts who works; each takes a while to end when it is cancelled, as a process does."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.at_work = self.most = 0

    async def __call__(self, number: int, seconds: float) -> int:
        self.begun.append(number)
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await asyncio.sleep(seconds)
            return number
        finally:
            await asyncio.sleep(0.05)
            self.at_work -= 1


def test_of_what_comes_quickly_only_the_newest_is_begun() -> None:
    async def scenario() -> None:
        work, asked = Work(), LatestRequest()
        answers = await asyncio.gather(*(asked.of(lambda n=n: work(n, 0)) for n in range(12)))
        assert answers == [None] * 11 + [11]
        assert work.begun == [11]

    asyncio.run(scenario())


def test_the_older_has_ended_before_the_newer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_request, "PAUSE", 0.01)

    async def scenario() -> None:
        work, asked = Work(), LatestRequest()
        answers = []
        for number in range(5):
            answers.append(asyncio.ensure_future(asked.of(lambda n=number: work(n, 60 if n < 4 else 0))))
            await asyncio.sleep(0.03)
        assert await asyncio.gather(*answers) == [None] * 4 + [4]
        assert (work.most, work.at_work) == (1, 0)
        assert work.begun[0] == 0 and work.begun[-1] == 4

    asyncio.run(scenario())


def test_nothing_is_under_way_when_the_page_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_request, "PAUSE", 0.0)

    async def scenario() -> None:
        work, asked = Work(), LatestRequest()
        answer = asyncio.ensure_future(asked.of(lambda: work(1, 60)))
        while not work.begun:
            await asyncio.sleep(0)
        asked.close()
        assert await answer is None
        assert work.at_work == 0
        assert await asked.of(lambda: work(2, 0)) is None
        assert work.begun == [1]

    asyncio.run(scenario())


def test_what_goes_wrong_is_told_who_asked() -> None:
    async def wrong() -> int:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        asyncio.run(LatestRequest().of(wrong))


def test_typing_a_file_starts_no_worker_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    described: list[str] = []
    for number in range(12):
        (tmp_path / f"k{number}.py").write_text("")

    async def describe(kernels: list[str]) -> list[dict[str, object]]:
        described.extend(kernels)
        raise ValueError("not a KernelSpec")

    monkeypatch.setattr(questions, "describe", describe)
    # Longer than this machine may stand still between two keys.
    monkeypatch.setattr(latest_request, "PAUSE", 2.0)

    async def type_many() -> None:
        form = ProfileForm(State(may_launch=True), JobManager())
        for number in range(12):
            field(form, "own kernel").value = f"k{number}.py:SPEC"
            await asyncio.sleep(0.01)
        async with asyncio.timeout(120):
            while "not a KernelSpec" not in said(form):
                await asyncio.sleep(0.01)

    asyncio.run(type_many())
    assert [Path(kernel).name for kernel in described] == ["k11.py:SPEC"]


def test_a_script_typed_after_a_kernel_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    monkeypatch.setattr(latest_request, "PAUSE", 0.01)
    (tmp_path / "k.py").write_text("")

    async def describe(kernels: list[str]) -> list[dict[str, object]]:
        await asyncio.sleep(0.05)
        return [{"name": "late", "kernel": kernels[0]}]

    monkeypatch.setattr(questions, "describe", describe)

    async def type_both() -> None:
        form = ProfileForm(State(may_launch=True, kernel="first"), JobManager())
        field(form, "own kernel").value = "k.py:SPEC"
        await asyncio.sleep(0.02)
        field(form, "own kernel").value = "k.py"
        await asyncio.sleep(0.2)
        assert form._own.script == tmp_path / "k.py"
        assert form.state.kernel == "first" and not form.state.catalog

    asyncio.run(type_both())


@pytest.mark.parametrize("refused", [False, True])
def test_what_becomes_of_a_file_is_shown_at_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    # Before its page is at rest, what a coroutine changes has no lock to be written under: it raised.
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    monkeypatch.setattr(latest_request, "PAUSE", 0.01)
    (tmp_path / "k.py").write_text("")
    ticks: list[Callable[[], None]] = []
    monkeypatch.setattr(user_kernel, "next_tick", ticks.append)

    async def describe(kernels: list[str]) -> list[dict[str, object]]:
        if refused:
            raise ValueError("not a KernelSpec")
        return [{"name": "any", "kernel": kernels[0]}]

    monkeypatch.setattr(questions, "describe", describe)

    async def type_one() -> None:
        field = UserKernelField(State(may_launch=True))
        field.field.value = "k.py:SPEC"
        async with asyncio.timeout(30):
            while not ticks:
                assert "Reading" in field.said.object and not field.state.catalog
                await asyncio.sleep(0.01)
        ticks.pop()()
        assert ("not a KernelSpec" in field.said.object) == refused == (not field.state.catalog)

    asyncio.run(type_one())
