"""Reads the present code of a kernel: the files of its package."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from tilescope.files import bounded_reading
from tilescope.runs import definitions, reader


class Today(definitions.Code):
    """The files of the package that ``path`` is in, or of its folder where that is not a package."""

    def __init__(self, path: Path) -> None:
        packages = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
        self._beside, self._top = path.parent, packages[-1] if packages else path.parent
        super().__init__(self._top.name if packages else "")
        self._texts: dict[str, str] = {}
        self._module = functools.cache(self._file_of)

    def text(self, file: str) -> str:
        if file not in self._texts:
            self._texts[file] = reader.source_bytes(Path(file)).decode()
        return self._texts[file]

    def locate(self, module: str, importer: str) -> str | None:
        name = module.lstrip(".")
        level = len(module) - len(name)
        folder = Path(importer).parents[level - 1] if level else self._top.parent if self.package else self._top
        return self._module("/".join([str(folder), *filter(None, name.split("."))]))

    def _file_of(self, module: str) -> str | None:
        places = (f"{module}.py", f"{module}/__init__.py")
        return next((place for place in places if bounded_reading.is_inside(Path(place), self._top)), None)

    def named(self, base: str) -> str | None:
        places = (self._beside / base, self._top / base)
        near = next((place for place in places if bounded_reading.is_inside(place, self._top)), None)
        there = near or (reader.file_below(self._top, base) if self.package else None)
        return str(there) if there else None
