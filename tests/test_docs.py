"""The documentation: its links lead somewhere, its code blocks run, its reference has everything, and Sphinx builds it."""

import importlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tilescope
import yaml
from tilescope import cli
from tilescope.collectors import fault_rules
from tilescope.commands import choices
from tilescope.models import advice, documents
from tilescope.table import metrics

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Pages that are made from the code, and those that hold another file.
MADE = ("commands.md", "metrics.md", "findings.md", "json.md", "library.md")
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page not in {DOCS / "reference" / name for name in MADE}),
]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
#: Marks of blocks that are only compiled or parsed, and why.
MARKS = {"gpu": "needs a GPU", "endless": "waits for the next save: profiles/test_watch.py"}
#: Beginnings of commands that are only parsed, and why.
PARSED = {
    "make": "installs packages",
    "pip": "installs packages",
    "tilescope check": "takes minutes without a GPU: profiles/test_check.py",
    "tilescope gate": "needs a repository: profiles/test_gate.py",
    "tilescope list": "loads every kernel: profiles/test_cli.py",
    "tilescope model": "needs a GPU: profiles/test_on_gpu.py",
    "tilescope open": "needs NVIDIA's ncu-report: profiles/test_foreign_files.py",
    "tilescope profile softmax": "takes a minute: profiles/test_cli.py",
    "tilescope profile train.py": "the quickstart profiles a script",
    "tilescope recordings --help": "exits",
    "tilescope resume": "needs an interrupted run: profiles/test_cli.py",
    "tilescope serve": "does not end: dashboard/test_serve.py",
    "tilescope site": "takes a minute: dashboard/test_site.py",
    "tilescope tune": "takes minutes: profiles/test_tuning.py",
    "tilescope upgrade": "downloads a release: profiles/test_upgrade.py",
    "tilescope watch": "does not end: profiles/test_watch.py",
}
#: A text that a page's commands print.
SHOWN = {"quickstart.md": "98 blocks leave 34 of 132 SMs idle"}
MODEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(100))

    def forward(self, x):
        y = torch.empty_like(x)
        scale[(1,)](x, y, len(x), BLOCK=128)
        return y * self.weight.to(x.device)
"""


class Block(NamedTuple):
    """A code block; ``mark`` is the comment above it: one of ``MARKS``, or the file that it is."""

    kind: str
    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(one["kind"], one["mark"] or "", one["text"]) for one in found]


def anchors(page: Path) -> list[str]:
    """What links call the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def lines(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block, or of a workflow's steps."""
    text = block.text if block.kind == "" else ""
    if block.kind == "yaml":
        jobs = yaml.safe_load(block.text)["jobs"].values()
        text = "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)
    yield from filter(None, (shlex.split(line, comments=True) for line in text.splitlines()))


@pytest.fixture(scope="module")
def generate() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(DOCS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(_BLOCK, "", page.read_text(encoding="utf-8"))
    for link, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        to = page.parent / link if link else page
        assert to.name in MADE or link.startswith("https://") or to.exists(), link
        assert not heading or heading in anchors(to), heading
    named = re.findall(r"^(?:how-to|reference)/[\w-]+$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(f"{Path(name).name}.md" in MADE or (DOCS / f"{name}.md").is_file() for name in named)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if {"", "python", "yaml"} & {one.kind for one in blocks(page)}],
    ids=lambda page: page.stem,
)
def test_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in a folder that has the runs and the model that the pages name."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    for block in blocks(page):
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            inner = textwrap.indent(block.text, "  ")
            compile(f"async def page():\n{inner}", page.name, "exec")
            if block.mark not in MARKS:
                exec(block.text, names)  # noqa: S102 - ours
        for words in lines(block):
            accept(words)
            command = " ".join(words)
            if block.mark not in MARKS and not any(command.startswith(one) for one in PARSED):
                assert cli.main(words[1:]) != 2, words
    assert SHOWN.get(page.name, "") in capsys.readouterr().out


def reader(folder: Path) -> dict[str, Any]:
    """Writes what pages name into the folder. Returns the names that their code uses."""
    run = next(tilescope.recordings("row_sum")).folder
    shutil.copytree(run, folder / "runs" / run.name)
    for name in ("RUN", "OTHER", "BEFORE", "AFTER"):
        copied = shutil.copytree(run, folder / name) / "run.json"
        copied.write_text(copied.read_text().replace(run.name, f"20260101-010101-{name.lower()}"))
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    names = runpy.run_path("model.py")
    return {**names, "tilescope": tilescope, "model": names["Model"](), "x": names["torch"].ones(100)}


def accept(words: list[str]) -> None:
    """Raises AssertionError unless the parser takes these words, or make has the target."""
    if words[0] == "make":
        assert re.search(f"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), words
    elif words[0] == "tilescope":
        given, of_script = choices.split(words[1:])
        if of_script:
            choices.own_arguments(given[-1], of_script)
        if "--help" not in given:
            known, rest = cli.parser(given[0]).parse_known_args(given)
            assert known.command == given[0] and not [one for one in rest if one.startswith("-")], words
    else:
        assert words[0] in ("pip", "python"), words


def test_reference_has_every_registration(generate: Any) -> None:
    pages = {name: make() for name, make in generate.PAGES.items()}
    for command in ("profile", "tune", "gate", "report", "site", "serve", "recordings publish"):
        assert f"## tilescope {command}\n" in pages["commands"]
    assert all(f"| `{name}` |" in pages["metrics"] for name in metrics.METRICS)
    assert pages["findings"].count("\n## ") == len(advice.RULES) + 1
    assert pages["findings"].count("*Evidence:*") > len(advice.RULES) * 2 / 3
    assert pages["findings"].count("**Example") == len(advice.RULES)  # or why no recording has it
    assert all(rule.__doc__.split(".")[0] in pages["findings"] for rule in fault_rules.RULES)
    assert pages["findings"].count("**Cure:**") > len(advice.RULES) * 2 / 3  # the others compute it
    assert all(f"\n## {name}\n" in pages["json"] for name in documents.TYPES)


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    made = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "Raises" in (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        outside = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)', text)
        assert not outside and not re.findall(r'href="(#[^"]*(?:\.md|/)[^"]*)"', text), page
