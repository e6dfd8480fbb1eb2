"""The documentation: its links lead somewhere, its code blocks work, its reference has everything, and Sphinx builds it."""

import importlib
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tilescope import cli
from tilescope.commands import profile
from tilescope.models import advice, documents
from tilescope.table import metrics

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Pages that are made from the code, and those that hold another file.
MADE = ("commands.md", "metrics.md", "findings.md", "json.md", "library.md")
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.name not in MADE)]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """A code block; ``mark`` is the comment above it: ``gpu``, or the file that it is."""

    kind: str
    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(one["kind"], one["mark"] or "", one["text"]) for one in found]


def lines(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block."""
    if block.kind == "":
        for line in block.text.splitlines():
            yield shlex.split(line, comments=True)


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
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        made = (page.parent / link).name in MADE
        assert made or link.startswith("https://") or (page.parent / link).exists(), link
    named = re.findall(r"^(?:how-to|reference)/[\w-]+$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(f"{Path(name).name}.md" in MADE or (DOCS / f"{name}.md").is_file() for name in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_are_accepted(page: Path) -> None:
    """Every command of Tilescope has a parser that takes its arguments, and every target of make is there."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for words in (words for block in blocks(page) for words in lines(block) if words):
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[0] == "tilescope":
            given, of_script = profile.split(words[1:])
            if of_script:
                profile.own_arguments(given[-1], of_script)
            if given != ["recordings", "--help"]:
                known, rest = cli.parser(given[0]).parse_known_args(given)
                assert known.command == given[0] and not [one for one in rest if one.startswith("-")], words
        else:
            assert words[0] in ("pip", "python"), words


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "quickstart.md"], ids=lambda page: page.stem)
def test_code_of_a_page_is_valid(page: Path) -> None:
    """Code for a GPU, or for a model of the reader's, compiles; configuration is YAML."""
    for block in blocks(page):
        if block.kind == "python":
            inner = textwrap.indent(block.text, "  ")
            compile(f"async def page():\n{inner}", page.name, "exec")
        elif block.kind == "yaml":
            assert yaml.safe_load(block.text)


def test_quickstart_works_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = []
    for block in blocks(DOCS / "quickstart.md"):
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.kind == "python" and block.mark != "gpu":
            exec(block.text, names)  # noqa: S102 - ours
        for words in lines(block) if block.mark != "gpu" else ():
            if words[0] == "tilescope":
                ran.append(words[1])
                assert cli.main(words[1:]) in (0, 1), words
    assert ran == ["doctor", "profile", "advise"]
    assert "98 blocks leave 34 of 132 SMs idle" in capsys.readouterr().out and len(names["run"].table)


def test_reference_has_every_registration(generate: Any) -> None:
    pages = {name: make() for name, make in generate.PAGES.items()}
    for command in ("profile", "tune", "gate", "report", "site", "serve"):
        assert f"## tilescope {command}\n" in pages["commands"]
    assert all(f"| `{name}` |" in pages["metrics"] for name in metrics.METRICS)
    assert pages["findings"].count("\n## ") == len(advice.RULES)
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
        outside = re.findall(
            r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)', page.read_text(encoding="utf-8")
        )
        assert not outside, page
