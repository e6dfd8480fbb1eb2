"""Whether the code that a run measured is still the code that is here."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tilescope.files import bounded_reading, names
from tilescope.runs import definitions, store


def stale_kernels(loaded: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code is no longer what was measured.

    That is the code of the file that declares the kernel, and what it comes to in those that what it launched is in, as far
    as the run kept them; comments and docstrings are no code. A run that kept no texts knows the declaring file's bytes alone.
    """
    try:
        sources = loaded.sources
    except store.StoreError:  # damaged: whoever wants to read the texts is told
        sources = {}
    return [name for name, facts in loaded.run.kernels.items() if _may_have_changed(facts, sources.get(name, {}))]


def _may_have_changed(facts: Mapping[str, Any], kept: Mapping[str, str]) -> bool:
    """Code that cannot be read, then or now, is not known to be the same."""
    try:
        return _has_changed(facts, kept)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, LookupError):
        return True


def _has_changed(facts: Mapping[str, Any], kept: Mapping[str, str]) -> bool:
    path = store.source_file(str(facts.get("file", "")))
    if path is None:
        return False
    today, measured = store.source_bytes(path), facts.get("sha256")
    if sha256(today).hexdigest() != measured:
        text = kept.get(path.name, "")
        if sha256(text.encode()).hexdigest() != measured or not definitions.same_code(text, today.decode()):
            return True
    # Helpers lie beside it, or above it in the same package; other libraries' files, which a run keeps too, do not.
    folders = [path.parent, *(folder for folder in path.parents[1:2] if (folder / "__init__.py").is_file())]
    helpers = {
        file: store.source_bytes(helper).decode()
        for file in kept.keys() - {path.name}
        if names.is_source(file)
        and (
            helper := next(
                (folder / file for folder in folders if bounded_reading.is_inside(folder / file, folder)), None
            )
        )
    }
    if all(kept[file] == text for file, text in helpers.items()):  # to read code takes longer than to compare texts
        return False
    reached = definitions.reached({**kept, path.name: kept.get(path.name) or today.decode()}, path.name)
    return not all(definitions.same(reached[file], kept[file], text) for file, text in helpers.items())
