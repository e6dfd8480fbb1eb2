"""A real JupyterLab in a browser that reaches nothing else: a notebook draws, a widget answers, the tile opens the app.

Skipped where JupyterLab is not installed (``pip install 'tilescope[jupyter]'``) or there is no Chromium.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tilescope import store
from tilescope_dashboard import launcher

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
TOKEN = "lab"  # noqa: S105
#: Panel asks for these again whenever it draws anew in a notebook, inlined or not; without them all is there.
STYLES = "https://cdn.holoviz.org/panel/"

KERNEL = """
import torch
import triton
import triton.language as tl

import tilescope


@triton.jit
def double_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](out, x, x.numel(), BLOCK=64)
    return out


def reference(x):
    return x + x
"""
PROFILE = """
run = tilescope.profile(double, inputs={"x": torch.randn(1000)}, reference=reference, collectors=["interpreter"])
run
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterlab") is None, reason="no JupyterLab: pip install 'tilescope[jupyter]'"
    ),
]


def notebook(path: Path, *cells: str) -> None:
    """A notebook of code cells."""
    made = [
        {"cell_type": "code", "id": f"c{n}", "execution_count": None, "metadata": {}, "outputs": [], "source": text.strip()}
        for n, text in enumerate(cells)
    ]  # fmt: skip
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A JupyterLab on an empty folder, with the tile: its address and the folder."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "jupyter_server_config.json").write_text(
        json.dumps({"ServerProxy": {"servers": {launcher.NAME: launcher.tile()}}})
    )
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TILESCOPE_RUNS": str(folder / "runs"),
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}",
        # Otherwise a question about news lies over the page.
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    log = folder / "lab.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}", folder
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


@pytest.fixture
def page(lab: tuple[str, Path]) -> Iterator[Any]:
    """A page of a browser that reaches the lab only. Fails for errors in pages and for other requests."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    wrong: list[str] = []

    def guard(route: Any) -> None:
        address = route.request.url
        if address.startswith((lab[0], "data:", "blob:")):
            route.continue_()
            return
        if not (address.startswith(STYLES) and ".css" in address):
            wrong.append(address)
        route.abort()

    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        context = browser.new_context(viewport={"width": 1300, "height": 1600})
        context.set_default_timeout(60_000)
        context.route("**/*", guard)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        yield context.new_page()
        browser.close()
    assert not wrong


def run_all(page: Any, address: str, name: str) -> None:
    """Opens a notebook and runs its cells."""
    # A workspace of its own: another test's notebook must not be open beside it.
    page.goto(f"{address}/lab/workspaces/{Path(name).stem}/tree/{name}?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector("text=| Idle")
    page.click(".lm-MenuBar-itemLabel >> text=Run")
    page.click(".lm-Menu-itemLabel >> text=Run All Cells >> nth=0")


def test_a_view_draws_and_its_widget_answers(lab: tuple[str, Path], page: Any) -> None:
    address, folder = lab
    runs = store.list_runs([store.recorded_dir()])
    recorded = next(found for found in runs if "softmax" in found.kernels and "interpreter" in found.sources)
    notebook(folder / "view.ipynb", f"import tilescope\ntilescope.load('{recorded.id}').roofline('softmax')")
    run_all(page, address, "view.ipynb")
    page.wait_for_selector(".bk-Figure canvas, .bk-Canvas, canvas")
    heading = page.locator("h2").filter(has_text="of the roof")
    before = heading.inner_text()
    page.locator("input[type=checkbox]").first.click()
    deadline = time.monotonic() + 30
    while heading.inner_text() == before:
        assert time.monotonic() < deadline, (
            "the switch changed nothing: pyviz_comms must be in JupyterLab's environment"
        )
        page.wait_for_timeout(200)


def test_a_kernel_of_a_cell_is_profiled_and_its_summary_shown(lab: tuple[str, Path], page: Any) -> None:
    address, folder = lab
    notebook(folder / "own.ipynb", KERNEL, PROFILE)
    run_all(page, address, "own.ipynb")
    page.wait_for_selector(".jp-OutputArea-output th >> text=bytes ratio")
    said = page.inner_text(".jp-Notebook")
    assert "double on NVIDIA" in said
    assert "1.00×" in said
    # The cell's first output was the progress; it is one line now.
    assert "finished," in said
    assert page.locator(".jp-OutputArea-output progress").count() == 0


def test_the_tile_opens_the_app(lab: tuple[str, Path], page: Any) -> None:
    page.goto(f"{lab[0]}/lab/workspaces/tile?token={TOKEN}")
    # A slow start can open two launchers, one behind the other.
    tile = page.locator(".jp-LauncherCard:visible", has_text="Tilescope").first
    tile.wait_for()
    with page.context.expect_page() as opened:
        tile.click()
    app = opened.value
    app.wait_for_selector("text=HBM traffic")
    # Jupyter has asked who this is: they may start work.
    app.wait_for_selector("text=Profile")
    assert app.url.startswith(f"{lab[0]}/tilescope/app")
