"""Reads the present code of a kernel: the files of its package."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

from tilescope.files import bounded_reading
from tilescope.runs import definitions, reader

#: How a file that is written from a notebook's or script's code says where that found its modules.
_FOLDER = re.compile(r"""^sys\.path\.append\(('[^'\n]*'|"[^"\n]*")\)$""", re.MULTILINE)


def packages_of(path: Path) -> list[Path]:
    """The folders of the packages that the file is in, the innermost first."""
    return list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))


class Today(definitions.Code):
    """The files of the package that ``path`` is in. Where that is none: of its folder and of those it adds to ``sys.path``."""

    def __init__(self, path: Path) -> None:
        packages = packages_of(path)
        super().__init__(packages[-1].name if packages else "")
        self._path, self._packages = path, packages
        self._texts: dict[str, str] = {}
        self._module = functools.cache(self._file_of)

    @functools.cached_property
    def _folders(self) -> list[Path]:
        """Folders that hold the files; links may not lead out of them."""
        if self._packages:
            return [self._packages[-1]]
        added = _FOLDER.findall(self.text(str(self._path)))
        return [self._path.parent, *(Path(ast.literal_eval(folder)) for folder in added)]

    def text(self, file: str) -> str:
        if file not in self._texts:
            self._texts[file] = reader.source_bytes(Path(file)).decode()
        return self._texts[file]

    def locate(self, module: str, importer: str) -> str | None:
        name = module.lstrip(".")
        level = len(module) - len(name)
        if level:
            roots = [Path(importer).parents[level - 1]]
        else:
            roots = [folder.parent for folder in self._folders] if self.package else self._folders
        found = (self._module("/".join([str(root), *filter(None, name.split("."))])) for root in roots)
        return next(filter(None, found), None)

    def _file_of(self, module: str) -> str | None:
        return self._first(Path(f"{module}.py"), Path(f"{module}/__init__.py"))

    def _first(self, *places: Path) -> str | None:
        """The first of the places that is a file in one of the folders."""
        inside = (str(p) for p in places if any(bounded_reading.is_inside(p, folder) for folder in self._folders))
        return next(inside, None)

    def named(self, base: str) -> str | None:
        if near := self._first(self._path.parent / base, *(folder / base for folder in self._folders)):
            return near
        there = reader.file_below(self._folders[0], base) if self.package else None
        return str(there) if there else None
