"""The site of a folder of runs: its pages as text, then opened from the folder by a browser without a network."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tilescope import cli
from tilescope_dashboard.report import site as site_pages

from . import synthetic
from .conftest import RUN

STEPS = Path(__file__).parents[1] / "profiles" / "fixtures" / "steps"


@pytest.fixture(scope="module")
def site(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of two measured runs, of predicted ones, and of a damaged one."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(runs, folder / "nightly")
    synthetic.write_run(folder / "nightly", "20260103-030405-eeee")
    # Other kernels have more recordings to look through.
    chosen = ["--kernel", "layer_norm", "--kernel", synthetic.INJECTED, "--title", "Nightly <runs>"]
    assert cli.main(["site", str(folder / "out"), str(folder / "nightly"), *chosen]) == 0
    return folder / "out"


def test_site_has_a_page_for_each_kernel(site: Path) -> None:
    index = (site / "index.html").read_text()
    assert "<h1>Nightly &lt;runs&gt;</h1>" in index and "From 4 runs on Synthetic GPU" in index
    assert '<a href="layer_norm.html"' in index and "softmax.html" not in index
    page = (site / "layer_norm.html").read_text()
    for part in ("Roofline", "Sizes, forward", "HBM traffic", "Occupancy", "History", "Advice, forward", "Every case"):
        assert f'class="piece">{part}' in page, part
    assert "2 runs" in page and "http" not in page.replace("http-equiv", "")


def test_site_writes_hostile_names_as_text(site: Path) -> None:
    (hostile,) = site.glob("*script*~1.html")
    for page in (site / "index.html", hostile):
        assert "<script>document" not in page.read_text()


def test_file_names_of_alike_kernels_differ() -> None:
    kernels = ["softmax", "Softmax", "index", "model-1", "a?", "a/", "a--5", "a-", "x" * 300, "x" * 301, "é", "-"]
    names = [site_pages.file_name(kernel, number) for number, kernel in enumerate(kernels)]
    assert names[0] == "softmax" and len({name.lower() for name in names} - {"index", "model-1"}) == len(kernels)
    assert max(map(len, names)) < 200


def test_site_opens_from_its_folder_offline(site: Path, chromium: Any) -> None:
    context = chromium.new_context(offline=True, color_scheme="dark", viewport={"width": 390, "height": 800})
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_label("Find a kernel").fill("norm LAYER")
    assert page.get_by_role("status").inner_text().startswith("1 of 2 ")
    page.get_by_role("link", name="layer_norm").click()
    page.locator(".figure canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not wrong, wrong
    context.close()


def test_site_and_report_show_the_ledger_of_a_step(tmp_path: Path) -> None:
    """The recorded step of a model, beside a predicted kernel, whose verdict stands for its times."""
    synthetic.write_run(tmp_path / "runs", "20260103-030405-eeee", ("layer_norm",), measured=False)
    run = synthetic.write_run(tmp_path / "runs", RUN, ("swiglu",), measured=False)
    shutil.copy(STEPS / "transformer_block_h200.json.gz", run / "step.json.gz")
    assert cli.main(["site", str(tmp_path / "out"), str(tmp_path / "runs")]) == 0
    index, page = ((tmp_path / "out" / name).read_text() for name in ("index.html", f"model-{RUN}.html"))
    assert f'<a href="model-{RUN}.html">synthetic prediction</a>: A step takes ' in index
    assert ">verdict</th>" in index and "of roofline</th>" not in index and "swiglu" not in index
    parts = ("A step takes ", "What to do next", "Modules", "Kernels")
    for part in parts:
        assert f'class="piece">{part}' in page
    assert page.count('class="figure"') == 1
    out = tmp_path / "out.md"
    assert cli.main(["report", str(run), "-o", str(out)]) == 0
    text = out.read_text()
    headings = re.findall("^#### (.*)", text, re.M)
    assert len(headings) == len(parts) and all(map(str.startswith, headings, parts))
    assert "\n\n1. " in text and "swiglu" not in text


def test_site_says_what_it_cannot_show(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert cli.main(["site", str(tmp_path / "out"), *arguments]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "no folder nowhere: name a folder that holds runs" in said("nowhere")
    assert "is one run: name the folder it is in" in said(str(runs / RUN))
    assert f"no run in {tmp_path}" in said(str(tmp_path))
    assert "did you mean 'softmax'?" in said(str(runs), "--kernel", "softmx")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("mine")
    assert "has an index.html of something else" in said(str(runs))
    assert [one.read_text() for one in (tmp_path / "out").iterdir()] == ["mine"]
    assert cli.main(["site", str(runs / RUN / "run.json"), str(runs)]) == 2
    assert "run.json is a file: name a folder" in capsys.readouterr().err
