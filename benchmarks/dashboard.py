"""How quick the dashboard is on this machine, against its budgets: ``make bench-dashboard``.

A real server and a headless Chromium. Times are taken in the page, from the click or the start of the navigation to the
frame in which the figure has been painted (``performance.now``): what a person waits for, without the driver's polling.
The runs with many launches are made up; no number in them was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright
from tilescope.hardware import ceilings
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Run
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

ROOT = Path(__file__).resolve().parents[1]
#: What is measured, and the most it may take, in seconds; memory in bytes.
BUDGETS = {
    "page ready, warm": 1.2,
    "view switch, page just opened": 0.5,
    "view switch": 0.3,
    "filter 10,000 launches": 0.2,
    "filter 100,000 launches": 1.0,
    "page ready beside 19 others": 2.0,
    "20 sessions at once, the slowest": 5.0,
    "Claims": 1.0,
    "memory kept of a closed session": 1e6,
    "browser busy, of 5 s at rest": 0.25,
}
SESSIONS = 20
#: Seconds for which a page, or a busy server, is waited for.
PATIENCE = 30
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]

#: Resolves with ``performance.now()`` in the first frame in which every visible figure is painted and ``when`` holds.
PAINTED = """
const figures = function* (views) {
  for (const view of views) {
    if (!view.el?.checkVisibility({visibilityProperty: true})) continue
    if (view.model.type === "Figure") yield view
    else yield* figures(view.children())
  }
}
window.painted = when => new Promise((resolve, reject) => {
  const since = performance.now()
  const look = () => {
    const views = [...figures(window.Bokeh?.index ?? [])]
    if (views.length && views.every(view => view.has_finished()) && when(views))
      requestAnimationFrame(() => resolve(performance.now()))
    else if (performance.now() - since > 30000) reject(new Error("no figure was painted within 30 s"))
    else setTimeout(look, 15)
  }
  look()
})
"""
#: Clicks, and gives the milliseconds until other figures than those before, or other points in them, are painted.
AFTER_CLICK = """async element => {
  const points = view => view.model.renderers.map(renderer => renderer.data_source.get_length()).join()
  const about = views => views.map(view => view.model.id + ":" + points(view))
  const seen = new Set(await new Promise(resolve => painted(views => (resolve(about(views)), true))))
  const start = performance.now()
  element.click()
  return await painted(views => about(views).some(view => !seen.has(view))) - start
}"""


def many_launches(folder: Path, launches: int) -> str:
    """A made-up run of one kernel with that many launches in two workloads; its id."""
    identity = f"20260101-000000-{launches % 0xFFFF:04x}"
    product = ceilings.product_for("sm_90")
    gpu = Device(
        product.name,
        product.target,
        product.multiprocessors,
        product.l2_bytes,
        product.memory_bytes,
        True,
        product.ceilings,
    )
    facts = {"summary": "made up", "file": "", "sha256": "", "dims": ["N"], "passes": ["forward"], "implementations": {},
             "tolerance": {}, "cost": {}, "workloads": []}  # fmt: skip
    run = Run(
        id=identity, started="2026-01-01T00:00:00+00:00", device=gpu, versions={}, kernels={"many": facts},
        settings={"target": "sm_90"}, title=f"{launches} made-up launches",
    )  # fmt: skip
    drawn = np.random.default_rng(0).lognormal(size=(launches, 2))
    rows: list[dict[str, Any]] = []
    for launch in range(launches):
        case, (work, spent) = Case("many", "triton", "forward", f"{1 + launch % 2}-fp32"), drawn[launch]
        at = {"launch": launch // 2, "function": "made_up"}
        rows += [
            case.row("flops_fp32", 1e9 * work, "ncu", **at),
            case.row("dram_bytes_read", 1e8 * work, "ncu", **at),
            case.row("dram_bytes_written", 1e8, "ncu", **at),
            case.row("l2_bytes", 3e8 * work, "ncu", **at),
            case.row("gpu_time", 1e-4 * spent, "ncu", **at),
        ]
    writer = store.RunWriter(folder, run)
    writer.append(schema.frame(rows).assign(run_id=""))
    writer.finish()
    return identity


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The app's address and its process' number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "panel", "serve", str(ROOT / "dashboard" / "app.py"), "--warm", "--address", "127.0.0.1",
               "--port", str(port), "--allow-websocket-origin", f"127.0.0.1:{port}", "--log-level", "error",
               "--check-unused-sessions", "1000"]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/app"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(url, timeout=PATIENCE).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("the server did not start: see 'make serve'") from None
                time.sleep(0.2)
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()  # one that did not end would be in the way of what is measured next


def page_ready(page: Page, url: str) -> float:
    """Seconds from the start of the navigation to the first visible figure."""
    page.goto(url)
    return page.evaluate("() => painted(() => true)") / 1e3


def switched(page: Page, url: str, after: float) -> list[float]:
    """Seconds from a click on a view's tab to its figure, for views that were not looked at before. ``after`` so many seconds:
    the app makes views ready in its spare time."""
    page_ready(page, url)
    page.wait_for_timeout(1000 * after)
    names = ("Time", "Sizes", "Tune", "Compare", "History")
    return [page.get_by_role("tab", name=name, exact=True).evaluate(AFTER_CLICK) / 1e3 for name in names]


def claims(page: Page, url: str) -> float:
    """Seconds from the click on the tab of Claims, which has not been looked at before, to its figure."""
    page_ready(page, url)
    page.wait_for_timeout(4_000)
    # Home, over which it is reached by hand, has no figure; Overview has.
    for name in ("Library", "Overview"):
        page.get_by_role("tab", name=name, exact=True).click()
    return page.get_by_role("tab", name="Claims", exact=True).evaluate(AFTER_CLICK) / 1e3


def filtered(page: Page, url: str, run: str, times: int) -> list[float]:
    """Seconds from the click that takes a memory level away to the redrawn roofline with a point a launch."""
    page_ready(page, f"{url}?run={run}&kernel=many&view=roofline")
    page.get_by_role("switch", name="each launch").evaluate(AFTER_CLICK)
    level = page.get_by_role("button", name="L2", exact=True)
    # On, then off again: without it there is one point a launch.
    return [level.evaluate(AFTER_CLICK) / 1e3 for _ in range(2 * times)][1::2]


def busy(page: Page, url: str) -> float:
    """Seconds, of five, that the browser's main thread is busy with a page that has been left alone for ten."""
    page_ready(page, url)
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable")

    def spent() -> float:
        told = {metric["name"]: metric["value"] for metric in browser.send("Performance.getMetrics")["metrics"]}
        return float(told["TaskDuration"])

    page.wait_for_timeout(10_000)
    before = spent()
    page.wait_for_timeout(5_000)
    return spent() - before


async def entered(url: str) -> WebSocketClientConnection:
    """The connection of a new session, once its page and the models on it have been sent; asked for as a browser does, without
    one: twenty browsers would measure themselves."""
    page = await AsyncHTTPClient().fetch(url, request_timeout=PATIENCE)
    token = re.search(rb'"token":"([^"]+)"', page.body)[1].decode()
    place = url.partition("?")[0]
    address = HTTPRequest(place.replace("http", "ws", 1) + "/ws", headers={"Origin": place.rsplit("/", 1)[0]})
    connection = await websocket_connect(address, subprotocols=["bokeh", token])
    await connection.read_message()  # two more parts of the greeting
    await connection.read_message()
    await connection.read_message()
    for part in ({"msgid": "1", "msgtype": "PULL-DOC-REQ"}, {}, {}):
        await connection.write_message(json.dumps(part))
    while '"Figure"' not in str(await connection.read_message()):
        pass
    return connection


async def session(url: str) -> float:
    """Seconds until a new session has ``entered``."""
    start = time.perf_counter()
    connection = await entered(url)
    spent = time.perf_counter() - start
    connection.close()
    return spent


@contextmanager
def others(url: str, server: int, count: int) -> Iterator[None]:
    """So many sessions beside one's own: they stay open, and what the server does for them in its spare time is done."""
    there, done = threading.Event(), threading.Event()

    async def stay() -> None:
        connections = [await entered(url) for _ in range(count)]
        there.set()
        while not done.is_set():
            await asyncio.sleep(0.05)
        for connection in connections:
            connection.close()

    with ThreadPoolExecutor(1) as other:
        staying = other.submit(asyncio.run, stay())
        try:
            while not there.wait(0.1):
                if staying.done():
                    staying.result()
            settled(server)
            yield
        finally:
            done.set()
        staying.result()


def settled(server: int, longest: float = PATIENCE) -> None:
    """Return when the server has been all but idle for some seconds. Raises TimeoutError where it does not come to rest."""

    def spent() -> float:
        user, system = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    until = time.monotonic() + longest
    while time.monotonic() < until:
        before = spent()
        time.sleep(5)
        if spent() - before < 0.5:
            return
    raise TimeoutError(f"the server was still busy after {longest:.0f} s")


def together(url: str) -> float:
    """The slowest of ``SESSIONS`` that are asked for in the same instant, in seconds."""

    async def all_of_them() -> list[float]:
        AsyncHTTPClient.configure(None, max_clients=SESSIONS)
        return await asyncio.gather(*(session(url) for _ in range(SESSIONS)))

    # Playwright has this thread's event loop.
    with ThreadPoolExecutor(1) as other:
        return max(other.submit(asyncio.run, all_of_them()).result())


def kept(url: str, server: int) -> float:
    """Bytes of the server's memory that one more closed session leaves behind, once earlier ones have warmed it."""
    held = []
    for _ in range(2):
        together(url)
        time.sleep(18)  # the server keeps a session for 15 s, as pages that lost their connection come back
        pages = int(Path(f"/proc/{server}/statm").read_text().split()[1])
        held.append(pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0.0, (held[-1] - held[0]) / (SESSIONS * (len(held) - 1)))


def measured(times: int, seconds: float) -> Iterator[tuple[str, list[float]]]:
    """Every budget's measurements as they come; none of a budget that was not begun within so many ``seconds`` or that failed."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium found: apt-get install chromium")
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play, served(Path(name)) as (url, server):
        browser, recorded = play.chromium.launch(executable_path=path, args=FLAGS), f"{url}?kernel=softmax"

        def fresh(ask: Callable[[Page], list[float]]) -> list[float]:
            context = browser.new_context(viewport={"width": 1440, "height": 1000})
            context.add_init_script(PAINTED)
            page = context.new_page()
            page.set_default_timeout(1e3 * PATIENCE)
            try:
                return ask(page)
            finally:
                context.close()

        def ready() -> list[float]:
            # Chromium reads a script from the net the first time, and keeps its compiled code the second time.
            return fresh(lambda page: [page_ready(page, recorded) for _ in range(times + 2)])[2:]

        def switches(after: float) -> list[float]:
            return [spent for _ in range(times) for spent in fresh(lambda page: switched(page, recorded, after))]

        def beside() -> list[float]:
            with others(recorded, server, SESSIONS - 1):
                return ready()

        def filters(size: int) -> list[float]:
            run = many_launches(Path(name), size)
            return fresh(lambda page: filtered(page, url, run, times))

        questions: dict[str, Callable[[], list[float]]] = {
            "page ready, warm": ready,
            "view switch, page just opened": lambda: switches(0.0),
            "view switch": lambda: switches(6.0),
            "20 sessions at once, the slowest": lambda: [together(recorded) for _ in range(times)],
            "Claims": lambda: [fresh(lambda page: [claims(page, recorded)])[0] for _ in range(times)],
            "filter 10,000 launches": lambda: filters(10_000),
            "browser busy, of 5 s at rest": lambda: fresh(lambda page: [busy(page, recorded)]),
            "memory kept of a closed session": lambda: [kept(recorded, server)],
            "page ready beside 19 others": beside,
            "filter 100,000 launches": lambda: filters(100_000),
        }
        for what, ask in questions.items():
            found = []
            if time.monotonic() < until:
                try:
                    found = ask()
                except Exception as error:  # one that fails must not end the others
                    print(f"{what}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            yield what, found
        browser.close()


def line(what: str, values: list[float]) -> str:
    """A median, with the least and the most, beside its budget."""

    def text(value: float) -> str:
        return f"{value / 1e6:.2f} MB" if "memory" in what else f"{value * 1e3:,.0f} ms"

    if not values:
        return f"{what:34} not measured (budget {text(BUDGETS[what])})"
    said = f"{text(statistics.median(values)):>9} ({text(min(values))} to {text(max(values))}, n={len(values)})"
    return f"{what:34} {said}, budget {text(BUDGETS[what])}: {'kept' if within(what, values) else 'NOT KEPT'}"


def within(what: str, values: list[float]) -> bool:
    """Whether the median keeps the budget."""
    return bool(values) and statistics.median(values) <= BUDGETS[what]


def main() -> int:
    """Print a line for each budget as it is measured; 1 where one is not kept and ``--strict`` was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=2, help="how often each is measured (2)")
    parser.add_argument(
        "--seconds", type=float, default=150, help="no further budget is begun after so many seconds (150)"
    )
    parser.add_argument("--strict", action="store_true", help="fail where a budget is not kept")
    chosen = parser.parse_args()
    kept_all = True
    for what, values in measured(chosen.times, chosen.seconds):
        print(line(what, values), flush=True)
        kept_all &= within(what, values)
    print(f"load of this machine while measuring: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(chosen.strict and not kept_all)


if __name__ == "__main__":
    sys.exit(main())
