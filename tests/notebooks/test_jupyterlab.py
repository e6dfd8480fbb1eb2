"""A real JupyterLab in a browser that reaches nothing else: a notebook draws, a widget answers, the tile opens the app.

Skipped where JupyterLab is not installed (``pip install 'tilescope[jupyter]'``) or there is no Chromium.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tilescope.runs import store
from tilescope_dashboard.serving import launcher

from tests.held_port import HeldPort

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
run = tilescope.profile_kernels(double, inputs={"x": torch.randn(1000)}, reference=reference, collectors=["interpreter"])
run
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterlab") is None, reason="no JupyterLab: pip install 'tilescope[jupyter]'"
    ),
]


def notebook(path, *cells):
    """A notebook of code cells."""
    made = [
        {"cell_type": "code", "id": f"c{n}", "execution_count": None, "metadata": {}, "outputs": [], "source": text.strip()}
        for n, text in enumerate(cells)
    ]  # fmt: skip
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab on an empty folder, with the tile: its address and the folder."""
    folder = tmp_path_factory.mktemp("lab")
    held = HeldPort()
    (folder / "jupyter_server_config.json").write_text(
        json.dumps({"ServerProxy": {"servers": {launcher.NAME: launcher.tile()}}})
    )
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "TILESCOPE_RUNS": str(folder / "runs"),
        "HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={held.number}", "--allow-root",
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
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{held.number}/api", timeout=120).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.3)
        yield f"http://127.0.0.1:{held.number}", folder
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(120)


@pytest.fixture
def page(lab):
    """A page of a browser that reaches the lab and its folder only. Fails for errors in pages and for other requests."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    wrong: list[str] = []

    def guard(route):
        address = route.request.url
        if address.startswith((lab[0], lab[1].as_uri(), "data:", "blob:")):
            route.continue_()
            return
        if not (address.startswith(STYLES) and ".css" in address):
            wrong.append(address)
        route.abort()

    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        context = browser.new_context(viewport={"width": 1300, "height": 1600})
        context.set_default_timeout(240_000)
        context.route("**/*", guard)
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        yield context.new_page()
        browser.close()
    assert not wrong


def reaches(page, wanted, what, seconds=180.0):
    """Waits for ``wanted``; fails with ``what`` is wrong where it does not come."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(200)


def run_all(page):
    page.click(".lm-MenuBar-itemLabel >> text=Run")
    page.click(".lm-Menu-itemLabel >> text=Run All Cells >> nth=0")


def run_cells(page, lab, name, *cells):
    """Writes a notebook of those cells, opens it and runs them."""
    address, folder = lab
    notebook(folder / f"{name}.ipynb", *cells)
    # A workspace of its own: another test's notebook must not be open beside it.
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector("text=| Idle")
    run_all(page)


def softmax_run(source="ncu"):
    """Id of a recording of a softmax by that collector: ``ncu`` counted its bytes."""
    runs = store.list_runs([store.recorded_dir()])
    return next(found.id for found in runs if "softmax" in found.kernels and source in found.sources)


def drawn(page):
    """Figures with something on them: a canvas of more than two colours."""
    return int(page.evaluate(COUNT_DRAWN))


#: Bokeh's canvases lie in shadow roots within shadow roots.
COUNT_DRAWN = """() => {
  const found = [];
  const search = (root) => root.querySelectorAll("*").forEach((element) => {
    if (element.shadowRoot) search(element.shadowRoot);
    if (element.tagName === "CANVAS" && element.width > 200 && element.height > 100) found.push(element);
  });
  search(document);
  return found.filter((canvas) => {
    const context = canvas.getContext("2d");
    if (!context) return false;
    const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size > 2;
  }).length;
}"""


def test_controls_of_a_view_are_answered(lab, page):
    """A choice from a list, buttons, a heading that sorts, a row: each changes what is seen."""
    run_cells(page, lab, "controls", f"import tilescope\ntilescope.load('{softmax_run()}').roofline('softmax')")
    page.wait_for_selector("h2 >> text=% of the")
    table = page.locator(".tabulator-table").first
    page.wait_for_selector(".tabulator-row >> nth=0")

    before = table.inner_text()
    page.get_by_label("workload").first.click()
    page.locator("li", has_text="1823x781-fp32").click()
    reaches(page, lambda: table.inner_text() != before, "the list of workloads changed nothing")
    assert "8192x16384" not in table.inner_text()

    assert " L2 " not in f" {' '.join(table.inner_text().split())} "
    page.get_by_role("button", name="L2").click()
    reaches(page, lambda: " L2 " in f" {' '.join(table.inner_text().split())} ", "the button L2 brought no rows")

    first = page.locator(".tabulator-row").first
    before = first.inner_text()
    for _ in range(2):
        page.locator(".tabulator-col", has_text="bytes").first.click()
    reaches(page, lambda: first.inner_text() != before, "the heading sorted nothing")

    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").first.click()
    assert f"-softmax-{softmax_run()}-" in saved.value.suggested_filename
    assert "algorithm" in saved.value.path().read_text()


def end_kernels(page):
    """Ends every kernel of the lab, as its page would."""
    page.evaluate(
        """async (token) => {
      const base = location.origin + "/api/sessions";
      const headers = { Authorization: `token ${token}` };
      for (const session of await (await fetch(base, { headers })).json()) {
        await fetch(`${base}/${session.id}`, { headers, method: "DELETE" });
      }
    }""",
        TOKEN,
    )


def test_saved_and_exported_notebooks_show_all(lab, page):
    """Most of a saved one's bytes are what draws, which lies in it once. Exported it needs no kernel, server or other host."""
    pytest.importorskip("nbconvert")
    address, folder = lab
    opened = f"import tilescope\nrun = tilescope.load('{softmax_run()}')\nrun.roofline('softmax')"
    run_cells(page, lab, "small", opened, "run.traffic('softmax')", "run.occupancy('softmax')")
    page.wait_for_selector("h2 >> text=occupancy, limited by")
    live = page.locator(".jp-OutputArea-output h2").all_text_contents()
    reaches(page, lambda: drawn(page) >= 4, "not all figures were drawn")
    figures = drawn(page)
    plain = page.locator(".without-scripts")
    assert plain.count() == 3
    reaches(page, lambda: not any(plain.nth(n).is_visible() for n in range(3)), "what was drawn is there twice")
    # A number is joined to its unit where it is drawn.
    headline = page.locator("h2 >> text=% of the").inner_text().replace("\u00a0", " ")
    with page.expect_response(lambda answer: "/api/contents/" in answer.url and answer.request.method == "PUT"):
        page.keyboard.press("Control+s")
    saved = folder / "small.ipynb"
    assert saved.stat().st_size < 3_000_000

    # Changed by another hand, Jupyter takes it for someone else's and runs nothing of it.
    content = json.loads(saved.read_text())
    content["cells"][0]["source"] += "\n# not mine"
    (folder / "foreign.ipynb").write_text(json.dumps(content))
    end_kernels(page)
    page.goto("about:blank")
    page.goto(f"{address}/lab/workspaces/foreign/tree/foreign.ipynb?token={TOKEN}")
    plain.nth(2).wait_for()
    assert drawn(page) == 0
    assert headline in plain.first.inner_text()
    assert "GPU time" in plain.first.locator("th").all_text_contents()
    assert plain.nth(1).locator("td >> text=softmax").count() >= 1

    # nbconvert's own templates ask for these two, whatever a notebook holds.
    bare = ["--HTMLExporter.mathjax_url=", "--HTMLExporter.require_js_url="]
    command = [sys.executable, "-m", "nbconvert", "--to=html", *bare, "--log-level=ERROR", "small.ipynb"]
    subprocess.run(command, cwd=folder, env={**os.environ, "HOME": str(folder)}, check=True, timeout=600)
    page.goto((folder / "small.html").as_uri())
    page.wait_for_selector("h2 >> text=occupancy, limited by")
    assert [text for text in page.locator("h2").all_text_contents() if text in live] == live
    reaches(page, lambda: drawn(page) >= figures, "figures are missing in the export")


def choose_theme(page, name):
    """Chooses one of JupyterLab's themes in its menu."""
    page.click(".lm-MenuBar-itemLabel >> text=Settings")
    page.hover(".lm-Menu-itemLabel >> text=/^Theme$/")
    page.click(f".lm-Menu-itemLabel >> text=/^{name}$/")
    reaches(page, lambda: page.evaluate("document.body.dataset.jpThemeName") == name, f"no {name}")


def test_figures_follow_the_dark_theme(lab, page):
    roofline = f"import tilescope\nview = tilescope.load('{softmax_run()}').roofline('softmax')\nview"
    run_cells(page, lab, "dark", roofline, "view.state.theme")
    page.wait_for_selector("h2 >> text=% of the")
    said = page.locator(".jp-OutputArea-output").last
    reaches(page, lambda: "'light'" in said.inner_text(), "a light page's figures are not light")
    choose_theme(page, "JupyterLab Dark")
    try:
        page.wait_for_timeout(2000)
        page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        reaches(page, lambda: "'dark'" in said.inner_text(), "a dark page's figures are not dark")
        # Of two rows neither looks switched off.
        rows = page.locator(".tabulator-row")
        assert len({rows.nth(n).evaluate("row => getComputedStyle(row).color") for n in (0, 1)}) == 1
    finally:
        # The theme is kept for the tests after this one.
        choose_theme(page, "JupyterLab Light")


def test_kernel_of_a_cell_is_profiled(lab, page):
    run_cells(page, lab, "own", KERNEL, PROFILE)
    page.wait_for_selector(".jp-OutputArea-output th >> text=bytes vs minimum")
    said = page.inner_text(".jp-Notebook")
    assert "double predicted for NVIDIA" in said
    heads = page.locator(".jp-OutputArea-output th").all_text_contents()
    cells = page.locator(".jp-OutputArea-output tbody tr").first.locator("td").all_text_contents()
    assert cells[heads.index("bytes vs minimum")] == "1×"
    # The cell's first output was the progress; it is one line now.
    assert "finished," in said
    assert page.locator(".jp-OutputArea-output progress").count() == 0


def test_tile_opens_the_app(lab, page):
    page.goto(f"{lab[0]}/lab/workspaces/tile?token={TOKEN}")
    # A slow start can open two launchers, one behind the other.
    tile = page.locator(".jp-LauncherCard:visible", has_text="Tilescope").first
    tile.wait_for()
    with page.context.expect_page() as opened:
        tile.click()
    app = opened.value
    app.get_by_role("tab", name="Why").wait_for()
    # Jupyter has asked who this is: they may start work.
    app.wait_for_selector("text=Profile")
    assert app.url.startswith(f"{lab[0]}/tilescope/app")
