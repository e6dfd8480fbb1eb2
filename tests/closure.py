"""What decides the result of a script of checks: the repository's files that it imports, and those import, and so on.

Told from the text, without importing it. A file that imports what its text does not name, or starts another Python, needs its
whole package; so does one that asks for ``CATALOG`` or ``FAMILIES``. ``unforeseen`` holds that against what was imported.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilescope import _HOMES
from tilescope_kernels.catalog import ENTRIES, EXPORTS

ROOT = Path(__file__).resolve().parents[1]
#: Where the modules of a package are, and its names that are imported when they are first asked for.
PACKAGES = {
    "tilescope_kernels": (ROOT / "kernels/tilescope_kernels", EXPORTS),
    "tilescope": (ROOT / "profiles/tilescope", _HOMES),
    "tests": (ROOT / "tests", {}),
}
#: They import by name what others ask them for, and that is followed where it is asked for.
LAZY = {
    ROOT / path
    for path in (
        "kernels/tilescope_kernels/__init__.py", "kernels/tilescope_kernels/catalog.py", "profiles/tilescope/__init__.py",
        "tests/kernels/checks.py",
    )
}  # fmt: skip
#: What imports or starts something that the text need not name.
UNTOLD = ("import_module", "spec_from_file_location", "executable")
#: Programs of these import the modules beside them by their bare names.
BESIDE = (ROOT / "tests/kernels", ROOT / "notebooks")
#: Where the repository's own modules are: an environment may lie beside them.
OURS = {ROOT / name for name in ("kernels", "profiles", "tests", "notebooks")}


def decides(*scripts: Path) -> set[str]:
    """Paths from the root of the files, and folders of whole packages, that decide the results of scripts in tests/kernels."""
    found: set[Path] = set()
    waiting = list(scripts)
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            if path.is_file():
                waiting += _needs(path)
    return {path.relative_to(ROOT).as_posix() for path in found if not any(above in found for above in path.parents)}


def unforeseen(*scripts: Path) -> set[str]:
    """Files of the repository that this process has imported and that ``decides`` does not name."""
    named = [ROOT / path for path in decides(*scripts)]
    loaded = {
        Path(file).resolve() for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
    }
    # Modules of torch that have no file say one, without a folder.
    ours = {file for file in loaded if OURS & {*file.parents} and file.is_file() and file != Path(__file__)}
    return {file.relative_to(ROOT).as_posix() for file in ours if not any(file.is_relative_to(one) for one in named)}


@cache
def _needs(path: Path) -> list[Path]:
    text = path.read_text(encoding="utf-8")
    tree, folders = ast.parse(text), [folder for folder, _ in PACKAGES.values()]
    package = next((folder for folder in folders if folder in path.parents), path.parent)
    known: set[ast.AST] = set()
    needs: list[Path] = []
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                # Whatever else of the package may be asked for by this name.
                whole = top in PACKAGES and (alias.name == top or not alias.asname)
                needs += [PACKAGES[top][0]] if whole else _module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            needs += [one for alias in node.names for one in _module(_above(node, path), alias.name)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if path.parent in BESIDE and path.name.startswith("batch_") and (home := home_of(node.value)):
                needs += _module(f"tilescope_kernels.{home}")
        elif isinstance(node, ast.Call) and _last(node.func) == "import_module" and _foreign(node):
            known.add(node.func)
        elif (
            isinstance(node, ast.Attribute | ast.Name) and _last(node) in UNTOLD and not (node in known or path in LAZY)
        ):
            needs += [package] if package in folders else []
            needs += [folder for name, (folder, _) in PACKAGES.items() if f'"{name}' in text]
    return needs


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for type checkers alone."""
    waiting = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield node
                waiting.append(node)


def _last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _foreign(call: ast.Call) -> bool:
    """Whether what is imported by name is told to be no module of ours."""
    name = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    return isinstance(name, ast.Constant) and name.value.split(".")[0] not in PACKAGES


def _above(node: ast.ImportFrom, path: Path) -> str:
    """The module's full name, also where it is told from where the file is."""
    if not node.level:
        return node.module or ""
    folder = path.parents[node.level - 1]
    name, (top, _) = next(item for item in PACKAGES.items() if folder.is_relative_to(item[1][0]))
    return ".".join(filter(None, (name, *folder.relative_to(top).parts, node.module)))


def _module(name: str, attribute: str = "") -> list[Path]:
    """Files of a module, of the packages around it, and of what ``from name import attribute`` gives."""
    top, *rest = name.split(".")
    if top not in PACKAGES:
        return [path for folder in BESIDE if (path := folder / f"{top}.py").exists()]
    folder, later = PACKAGES[top]
    if attribute in ("CATALOG", "FAMILIES", "*"):
        return [folder]
    if attribute in later and not rest:
        return _module(f"{top}.{later[attribute]}") + _module(name)
    places = [folder.joinpath(*rest[:depth]) for depth in range(len(rest) + 1)]
    if attribute:
        places.append(places[-1] / attribute)
    return [file for place in places for file in (place / "__init__.py", place.with_suffix(".py")) if file.exists()]


@cache
def _homes() -> dict[str, str]:
    """The module of every kernel: what is declared as a spec names it."""
    found = {}
    for entry in ENTRIES:
        path = ROOT / "kernels/tilescope_kernels" / f"{entry.module.replace('.', '/')}.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & {
                *entry.specs.split()
            }:
                assert isinstance(node.value, ast.Call)
                arguments = [*node.value.args, *(word.value for word in node.value.keywords if word.arg == "name")]
                name = next(one.value for one in arguments if isinstance(one, ast.Constant))
                found[str(name)] = entry.module
    return found


def of_kernel(name: str) -> set[str]:
    """``decides`` of the module that declares a kernel."""
    return decides(*_module(f"tilescope_kernels.{_homes()[name]}"))


def home_of(kernel: str) -> str:
    """The module that declares the kernel of that name, within ``tilescope_kernels``; empty where there is none."""
    return _homes().get(kernel, "")
