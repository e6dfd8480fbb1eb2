"""What a visitor may: launch kernels, and run files of the folder that the server was told; what a button looks like decides nothing."""

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tilescope.jobs.plan import Request
from tilescope_dashboard.session import access
from tilescope_dashboard.session.jobs import CANCELLING, JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.jobs.job_panel import JobPanel

from .conftest import field, press, said
from .test_profile import ENTRY


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "kernel.py").write_text("SPEC = 1\n")
    (tmp_path / "outside.py").write_text("SPEC = 1\n")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.setenv(access.OWN_FILES, str(folder))
    return folder


def test_own_files_are_those_of_the_named_folder(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.user_kernel(" kernel.py:SPEC ") == f"{own / 'kernel.py'}:SPEC"
    assert access.user_kernel(f"{own / 'kernel.py'}:SPEC") == f"{own / 'kernel.py'}:SPEC"
    assert access.user_script(" kernel.py ") == own / "kernel.py"
    monkeypatch.delenv(access.OWN_FILES)
    with pytest.raises(ValueError, match="--allow-own-files"):
        access.user_kernel(f"{own / 'kernel.py'}:SPEC")


@pytest.mark.parametrize(
    "given",
    ["../outside.py:SPEC", "link.py:SPEC", "/etc/passwd:SPEC", "kernel.py", "kernel.py:", "kernel.py:a b", "no.py:SPEC", ":S"],
)  # fmt: skip
def test_every_other_file_is_refused_in_words(own: Path, given: str) -> None:
    refused = r"neither FILE|there is no file|lies outside of .*--allow-own-files"
    with pytest.raises(ValueError, match=refused):
        access.user_kernel(given)
    if given != "kernel.py":
        with pytest.raises(ValueError, match=refused):
            access.user_script(given.removesuffix(":SPEC"))


def test_own_files_offers_recent_ones_first(own: Path) -> None:
    for place, name in enumerate(("older.py", "newer.py", "notes.txt", ".hidden/a.py", "venv/pyvenv.cfg", "venv/a.py")):
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text("")
        os.utime(own / name, (place, place))
    os.utime(own / "kernel.py", (1000, 1000))
    (own / "link.py").unlink()
    assert access.own_files() == ["kernel.py", "newer.py", "older.py"]
    assert access.own_files(["older.py"]) == ["older.py", "kernel.py", "newer.py"]


def client(address: str, sent: dict[str, str], copied: dict[str, str]) -> SimpleNamespace:
    """A document whose client sent some headers, and what came back of them through the browser."""
    request = SimpleNamespace(
        remote_ip=address, headers=copied, _request=SimpleNamespace(remote_ip=address, headers=sent)
    )
    return SimpleNamespace(session_context=SimpleNamespace(request=request))


def test_who_may_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert access.may_launch(client(address, {}, {}))
    assert not any(access.may_launch(client(address, {}, {})) for address in ("192.0.2.7", ""))
    for unknown in (None, SimpleNamespace(request=SimpleNamespace(_request=None))):
        assert not access.may_launch(SimpleNamespace(session_context=unknown))
    # Behind a proxy on this machine, and keeping quiet about it.
    for name, value in (("X-Forwarded-For", "127.0.0.1, 192.0.2.7"), ("X-Forwarded-For", "192.0.2.7"), ("Via", "1.1 proxy"),
                        ("Forwarded", "for=10.0.0.9")):  # fmt: skip
        assert not access.may_launch(client("127.0.0.1", {name: value}, {}))
    # With --use-xheaders, the address is what a header says; the socket is somebody else's.
    claimed = client("127.0.0.1", {"X-Real-Ip": "127.0.0.1"}, {})
    claimed.session_context.request._request.connection = SimpleNamespace(
        context=SimpleNamespace(_orig_remote_ip="192.0.2.7")
    )
    assert not access.may_launch(claimed)
    monkeypatch.setattr(access.server, "asks", True)
    assert access.may_launch(client("192.0.2.7", {}, {}))


@pytest.mark.parametrize("may_launch", [False, True])
def test_visitor_starts_work_only_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_launch: bool) -> None:
    (tmp_path / "kernel.py").write_text("SPEC = 1\n")
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))

    async def planner(request: Request) -> None:
        await asyncio.Event().wait()

    async def press_everything() -> tuple[int, bool]:
        jobs = JobManager(planner)
        state = State(may_launch=may_launch, catalog=[ENTRY], kernel="softmax")
        form = ProfileForm(state, jobs)
        field(form, "collectors").param.update(options={"compiler": "compiler"}, value=["compiler"])
        press(form, "Start profiling")
        started = len(jobs.jobs)
        if not may_launch:
            field(form, "own kernel").value = "kernel.py:SPEC"
            assert "Reading" not in said(form)
        # Nobody has had a page for it for an hour: whoever may start work may end it.
        job = jobs.start(Request(kernels=("softmax",)))
        job.left = time.monotonic() - 3600
        await asyncio.sleep(0)
        JobPanel(state, jobs).stop()
        ended = job.status == CANCELLING
        await asyncio.sleep(0)
        for number in [one.number for one in jobs.jobs]:
            jobs.cancel(number)
        while jobs.active:
            await asyncio.sleep(0)
        return started, ended

    assert asyncio.run(press_everything()) == (int(may_launch), may_launch)
