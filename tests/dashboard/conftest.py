"""Made-up runs, a server and a browser for the dashboard's tests."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import panel as pn
import pytest
from tilescope.runs import store
from tilescope_dashboard.components.tables import Table
from tilescope_dashboard.session.state import State

from tests.held_port import HeldPort

from . import synthetic

ROOT = Path(__file__).resolve().parents[2]
Result = TypeVar("Result")
RUN, PREDICTED, INJECTED = "20260102-030405-aaaa", "20260102-030406-bbbb", "20260102-030407-cccc"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

#: A script of a user: it launches ``scale`` once.
SCRIPT = """
import torch, triton, triton.language as tl


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


x = torch.ones(1000, device="cuda")
scale[(8,)](x, torch.empty_like(x), 1000, BLOCK=128)
"""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a measured run, a predicted one, one whose kernel has a hostile name, and a damaged one."""
    folder = tmp_path_factory.mktemp("above") / "runs"
    synthetic.write_run(folder, RUN)
    synthetic.write_run(folder, PREDICTED, measured=False)
    synthetic.write_run(folder, INJECTED, kernels=(synthetic.INJECTED,), measured=False)
    damaged = folder / "20270102-030408-dddd"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    return folder


@pytest.fixture
def in_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are looked for among those that were made up, beside the recordings."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))


@pytest.fixture
def no_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package has no recordings."""
    monkeypatch.setattr(store, "recorded_dir", lambda: tmp_path / "recorded")


@pytest.fixture
def made(runs: Path, in_runs: None) -> list[store.Summary]:
    """The runs that were made up, without what is recorded."""
    return store.list_runs([runs])


@pytest.fixture
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs of the test's own, which is empty."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture
def nvml() -> ModuleType:
    """NVML with GPUs that a test sets up, new for each."""
    spec = importlib.util.spec_from_file_location("fake_nvml", Path(__file__).with_name("fake_nvml.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: How long a page is waited for before a test fails, in milliseconds: machines that tests run on vary tenfold within a day.
PATIENCE = 120_000
#: Stands before every worker of a server, as its ``sitecustomize``: one that is to run cases waits while there is a file.
_GATE = """
import json, sys, time
from pathlib import Path

job = Path(sys.orig_argv[-1])
if "tilescope.jobs.worker" in sys.orig_argv and json.loads(job.read_text())["action"] == "capture":
    while Path({hold!r}).exists():
        time.sleep(0.02)
"""


#: Before the app of a server that makes no views in spare time: ten of them a page, which most tests never look at.
_NO_SPARE_TIME = """
if "panel" in sys.orig_argv:
    from tilescope_dashboard.session.scheduling import IdleWork
    IdleWork.start = lambda self: None
"""


class Process:
    """Python in a folder with this checkout's packages, and its log; its path has the folders ``path`` before them."""

    def __init__(self, folder: Path, *command: str, path: tuple[Path, ...] = (), **environment: str) -> None:
        self.log = folder / "server.log"
        packages = [ROOT / part for part in ("kernels", "profiles", "dashboard")]
        paths = [*map(str, [*path, *packages]), os.environ.get("PYTHONPATH", "")]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            )  # fmt: skip

    def until(self, found: Callable[[], Result]) -> Result:
        """What ``found`` gives, as soon as it is anything."""
        deadline = time.monotonic() + PATIENCE / 1000
        while not (result := found()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return result

    def stop(self) -> str:
        """End it and give its log."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(120)
        return self.log.read_text()


class Server(Process):
    """A ``panel serve`` of the app.

    ``first`` is code that the server and its workers run before anything else. Views are made in spare time if ``prepares``.
    """

    def __init__(
        self, runs: Path, folder: Path, host: str = "127.0.0.1", first: str = "", *, prepares: bool = False
    ) -> None:
        self._held, self._checked = HeldPort(host), 0
        self.host, self.port = host, self._held.number
        self.url = f"http://{host}:{self.port}/app"
        self._hold = folder / "hold"
        gate = folder / "gate" / "sitecustomize.py"
        gate.parent.mkdir()
        gate.write_text(_GATE.format(hold=str(self._hold)) + ("" if prepares else _NO_SPARE_TIME) + first)
        super().__init__(
            folder, "-m", "panel", "serve", str(ROOT / "dashboard" / "app.py"), "--address", host, "--port", str(self.port),
            "--allow-websocket-origin", f"{host}:{self.port}", "--warm", path=(gate.parent,), TILESCOPE_RUNS=str(runs),
            TRITON_CACHE_DIR=str(folder / "triton"),
        )  # fmt: skip
        self.until(self.answers)
        # What is to run before the app may name what is no longer there: nobody else says so.
        assert "Error in sitecustomize" not in self.log.read_text(), self.log.read_text()

    def answers(self) -> bool:
        """Whether it serves its page."""
        try:
            with urllib.request.urlopen(self.url, timeout=120) as answer:  # noqa: S310 - our own server
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Jobs get as far as their first case and wait there, so that no test depends on how long they take."""
        self._hold.touch()
        try:
            yield
        finally:
            self._hold.unlink()

    def failures(self) -> list[str]:
        """What went wrong since this was last asked."""
        said = self.log.read_text()
        new, self._checked = said[self._checked :], len(said)
        return failures(new)


def failures(log: str) -> list[str]:
    """What went wrong in the server: its log from each traceback on, whoever's it is."""
    return [log[found.start() : found.start() + 3000] for found in re.finditer("Traceback", log)][:2]


@pytest.fixture(scope="session")
def shared_server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on loopback, for all tests of this process: to start it and open its first page takes as long as several tests."""
    served = Server(runs, tmp_path_factory.mktemp("server"))
    yield served
    served.stop()
    assert not served.failures()


@pytest.fixture(scope="session")
def job_server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on loopback, for tests that start jobs: every page shows the newest one. Its runs are no other test's."""
    folder = tmp_path_factory.mktemp("jobs")
    served = Server(shutil.copytree(runs, folder / "runs"), folder, prepares=True)
    yield served
    served.stop()
    assert not served.failures()


@pytest.fixture(scope="module")
def server(shared_server: Server) -> Iterator[Server]:
    """The app on loopback; after a module's tests its log must hold no new traceback."""
    yield shared_server
    assert not shared_server.failures()


@pytest.fixture(scope="module")
def outside_server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on this machine's own address, where its clients are not on loopback."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses the address we would send from
            address = probe.getsockname()[0]
    except OSError:
        pytest.skip("this machine has no address but loopback")
    served = Server(runs, tmp_path_factory.mktemp("outside"), address)
    yield served
    assert not failures(served.stop())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium; its tests are skipped, in words, where there is none.

    For a module, not the session: Playwright keeps an event loop running, and other tests want one of their own.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        browser.new_context, browser.new_page = (patient(make) for make in (browser.new_context, browser.new_page))
        yield browser
        browser.close()


#: In every page: Bokeh's views, and the elements that a selector fits, through all shadow roots.
_LOOK = """
window.allViews = (views = window.Bokeh?.index ?? []) => [...views].flatMap(view => [view, ...allViews(view.children?.() ?? [])])
window.allElements = (selector, root = document) => [...root.querySelectorAll("*")].flatMap(element =>
  [...(element.matches(selector) ? [element] : []), ...(element.shadowRoot ? allElements(selector, element.shadowRoot) : [])])
window.seenFigures = () => allViews().filter(view => view.model.type === "Figure" && view.el.checkVisibility({visibilityProperty: true}))
"""


def patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a context or a page, which then waits as long as a slow machine may take. Its pages have ``_LOOK``."""

    def made(*args: Any, **settings: Any) -> Any:
        place = make(*args, **settings)
        place.set_default_timeout(PATIENCE)
        place.add_init_script(_LOOK)
        return place

    return made


def field(shown: Any, label: str) -> Any:
    """The widget in what is shown whose label begins so."""
    return next(iter(shown.__panel__().select(lambda part: (getattr(part, "label", None) or "").startswith(label))))


def press(shown: Any, label: str) -> None:
    """Press the button in what is shown whose label begins so."""
    field(shown, label).param.trigger("clicks")


def grid(shown: Any) -> Table:
    """The first table in what is shown."""
    return next(iter(shown.__panel__().select(Table)))


def said(shown: Any) -> str:
    """The markup of all visible texts in what is shown."""
    texts = (part for part in shown.__panel__().select(pn.pane.HTML) if part.visible)
    return "\n".join(part.object or "" for part in texts)


def opened(view: Callable[[State], Any], /, **address: Any) -> Any:
    """The view, drawn, at that address."""
    shown = view(State(**{"view": getattr(view, "name_in_address", ""), **address}))
    shown.refresh()
    assert "could not be drawn" not in said(shown)
    return shown


#: Whether the place of a view is the one that is seen and all in it is built: then of how many parts it consists, else 0.
BUILT = """name => {
  const place = allViews().find(view => view.el?.classList.contains(`place-${name}`))
  if (!place || place.el.classList.contains("away")) return 0
  const parts = allViews(place.children()).filter(view => view.el?.checkVisibility())
  const built = view => view.model.type === "Figure" ? view.has_finished() : view.tabulator ? view.tabulator.initialized : true
  return parts.every(built) ? parts.length : 0
}"""


def built(page: Any, title: str) -> None:
    """Wait until the view of that title is seen and stays as it is."""
    name = {"HBM traffic": "traffic", "Tune": "autotune", "Memory and stalls": "counters", "Kernels": "home"}.get(
        title, title.lower()
    )
    seen: list[int] = []
    deadline = time.monotonic() + PATIENCE / 1000
    while len(seen) < 3 or not seen[-1] or len(set(seen[-3:])) > 1:
        assert time.monotonic() < deadline, f"{title}: {seen[-10:]}"
        page.wait_for_timeout(250)
        seen.append(page.evaluate(BUILT, name))


@pytest.fixture(name="built")
def _built() -> Callable[[Any, str], None]:
    """``built``, for tests."""
    return built


#: Groups of several views.
GROUPS = {
    "Why": ("Advice", "Roofline", "HBM traffic", "Memory and stalls", "Occupancy", "Fusing"),
    "Library": ("Kernels", "Claims", "Overview", "Model"),
    "Time": ("Timeline", "Inside"),
}
#: All views in their order, by the titles of their tabs.
TITLES = (
    *GROUPS["Library"], "Summary", *GROUPS["Why"], "Source", "Tune", *GROUPS["Time"], "Sizes", "Compare", "History", "Watch",
)  # fmt: skip


def look_at(page: Any, title: str) -> None:
    """Click the tab of a view, after that of its group where it is not seen."""
    tab = page.get_by_role("tab", name=title, exact=True)
    groups = [group for group, titles in GROUPS.items() if title in titles]
    if groups and not tab.is_visible():
        page.get_by_role("tab", name=groups[0], exact=True).click()
    tab.click()


def start_button(page: Any) -> Any:
    """The button that starts a profile, once the drawer with the form is open and the button may be pressed."""
    opener, button = (page.get_by_role("button", name=name, exact=True) for name in ("Profile", "Start profiling"))
    page.wait_for_function("opener => opener.hasAttribute('aria-expanded')", arg=opener.element_handle())
    if opener.get_attribute("aria-expanded") == "false":
        opener.click()
    button.wait_for()
    page.wait_for_function("button => !button.disabled", arg=button.element_handle())
    return button


def looked_at(page: Any, title: str) -> None:
    """Look at a view, and wait until it is ``built``."""
    look_at(page, title)
    built(page, title)


class Visit:
    """Opens pages that may ask our own server only, and gathers what goes wrong in them."""

    def __init__(self, browser: Any, server: Server) -> None:
        self.browser, self.server = browser, server
        self.wrong: list[str] = []
        self.contexts: list[Any] = []

    def __call__(self, query: str = "", width: int = 1440, height: int = 1100, url: str = "") -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(f"pageerror: {error.stack}"))
        page.on("console", lambda said: said.type == "error" and self.wrong.append(f"console: {said.text}"))
        page.route("**/*", self._guard)
        page.goto(url or f"{self.server.url}?{query}")
        return page

    def _guard(self, route: Any) -> None:
        address = route.request.url
        if address.startswith((f"http://{self.server.host}:{self.server.port}/", "data:", "blob:", "file:")):
            route.continue_()
        else:
            self.wrong.append(f"outside request: {address}")
            route.abort()


@pytest.fixture
def visit(chromium: Any, server: Server) -> Iterator[Visit]:
    """Opens pages; fails the test for any error in a page and any request that leaves the machine."""
    visiting = Visit(chromium, server)
    yield visiting
    for context in visiting.contexts:
        context.close()
    assert not visiting.wrong, visiting.wrong
