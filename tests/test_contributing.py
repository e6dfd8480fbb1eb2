"""CONTRIBUTING's picture of the house is the house, and its reading path is there and short."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STOREYS = {"tilescope_kernels": "kernels", "tilescope": "profiles", "tilescope_dashboard": "dashboard"}
#: Modules beside the rooms that rooms may import: below all of them.
BELOW = {"tilescope_kernels": {"spec", "dispatch"}, "tilescope": {"version"}, "tilescope_dashboard": set()}
MOST = 900


def rooms(storey: str) -> list[str]:
    """The rooms of a storey in the picture's order; each may import those before it."""
    picture = TEXT.split("```")[1].splitlines()
    (row,) = (n for n, line in enumerate(picture) if line.startswith(f"{STOREYS[storey]}/{storey} "))
    return re.findall(r"\w+", picture[row + 1])


def imports(storey: str) -> Iterator[tuple[Path, str, str]]:
    """Every file in a room, its room, and what of the same storey it imports: a room, or a module beside them."""
    package = ROOT / STOREYS[storey] / storey
    for path in sorted(package.glob("*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for first, _, rest in (name.partition(".") for name in names):
                if first == storey:
                    yield path, path.relative_to(package).parts[0], rest.partition(".")[0]


@pytest.mark.parametrize("storey", STOREYS)
def test_the_picture_names_the_folders_that_there_are(storey: str) -> None:
    folders = [path.parent.name for path in (ROOT / STOREYS[storey] / storey).glob("*/__init__.py")]
    assert sorted(rooms(storey)) == sorted(folders)
    explained = {*re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE), "notebook"}
    assert storey == "tilescope_kernels" or set(folders) <= explained  # a family's name says what it is


@pytest.mark.parametrize("storey", BELOW)
def test_rooms_import_from_those_before_them(storey: str) -> None:
    order = rooms(storey)
    seen = list(imports(storey))
    assert len({here for _, here, _ in seen}) > len(order) / 2
    backward = {
        f"{path.relative_to(ROOT)} imports {there}"
        for path, here, there in seen
        if there not in (here, *order[: order.index(here)], *BELOW[storey])
    }
    assert not backward


def test_the_reading_path_is_there_and_short() -> None:
    path = re.findall(r"^\d\. `([\w/]+\.py)`: ", TEXT, re.MULTILINE)
    assert 6 <= len(path) <= 8
    assert {file.split("/")[0] for file in path} == {"kernels", "profiles", "dashboard"}
    lines = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in path}
    assert sum(lines.values()) <= MOST, lines


def test_every_path_that_a_document_names_is_there() -> None:
    """Files and folders of the storeys, the tests and the notebooks."""
    for document in ("README.md", "docs/measured.md", "CONTRIBUTING.md", "GLOSSARY.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        named = re.findall(r"[`(]((?:kernels|profiles|dashboard|tests|notebooks)/[\w/.]*)[`)#]", text)
        missing = [name for name in named if not (ROOT / name).exists() and "FAMILY" not in name]
        assert not missing, f"{document}: {missing}"


def test_readme_on_an_index_page_has_absolute_links() -> None:
    """An index has no file beside the README: the links of the wheel's copy lead to the release's tag."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 90
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shown, source = readme, project["project"]["urls"]["Source"]
    for change in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(change["pattern"], change["replacement"], shown)
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(links) > 8 and all(link.startswith(f"{source}/") for link in links), links
    assert all(url.startswith(source) for url in project["project"]["urls"].values())
