"""Whether the code that a run measured is still the code that is here."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilescope.files import bounded_reading, names
from tilescope.runs import definitions, reader, same_code, store


def stale_kernels(run: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code is no longer what was measured.

    That is all that the file which declares the kernel defines, and what it reaches in the files that its launches are in,
    as far as the run kept them. Comments and docstrings are no code, and it does not matter which file of the package code
    is in. A run that kept no texts knows the declaring file's bytes alone.
    """
    try:
        sources = run.sources
    except store.StoreError:  # damaged: whoever wants to read the texts is told
        sources = {}
    found: dict[Any, bool] = {}
    stale = []
    for name, facts in run.run.kernels.items():
        file, measured, kept = str(facts.get("file", "")), str(facts.get("sha256", "")), sources.get(name, {})
        # Kernels of one file share its texts.
        key = (file, measured, frozenset(kept.items()))
        if key not in found:
            found[key] = _may_have_changed(file, measured, kept)
        if found[key]:
            stale.append(name)
    return stale


def _may_have_changed(file: str, measured: str, kept: Mapping[str, str]) -> bool:
    """Code that cannot be read, then or now, is not known to be the same."""
    try:
        return _has_changed(file, measured, kept)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, LookupError):
        return True


def _has_changed(file: str, measured: str, kept: Mapping[str, str]) -> bool:
    path = store.source_file(file)
    if path is None:
        return False
    today = _Today(path.absolute())
    content = store.source_bytes(path)
    unchanged = sha256(content).hexdigest() == measured
    root = content.decode() if unchanged else kept.get(path.name, "")
    if sha256(root.encode()).hexdigest() != measured:
        return True
    # Other libraries' files, which a run keeps too, are named by a path.
    texts = {path.name: root, **{name: text for name, text in kept.items() if names.is_source(name)}}
    found = {name: today.named(name) for name in texts}
    if unchanged and all(there and today.text(there) == texts[name] for name, there in found.items()):
        return False  # To read code takes longer than to compare texts.
    return not same_code.same(definitions.Recorded(texts, today), path.name, today, str(path.absolute()))


class _Today(definitions.Code):
    """The package that a file is in as it is now; of a file in no package, the files beside it."""

    def __init__(self, path: Path) -> None:
        packages = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
        self._beside, self._top = path.parent, packages[-1] if packages else path.parent
        super().__init__(self._top.name if packages else "")
        self._texts: dict[str, str] = {}
        self._module = functools.cache(self._file_of)

    def text(self, file: str) -> str:
        if file not in self._texts:
            self._texts[file] = store.source_bytes(Path(file)).decode()
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
