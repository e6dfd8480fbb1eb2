"""Whether the code that a run measured is still the code that is here."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from tilescope import store


def stale_kernels(loaded: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code is no longer what was measured.

    That is the code of the file that declares the kernel and of those that what it launched is in, as far as the run kept
    them; comments and docstrings are no code. A run that kept no texts knows the declaring file's bytes alone.
    """
    try:
        sources = loaded.sources
    except store.StoreError:  # damaged: whoever wants to read the texts is told
        sources = {}
    return [name for name, facts in loaded.run.kernels.items() if _has_changed(facts, sources.get(name, {}))]


def _has_changed(facts: Mapping[str, Any], kept: Mapping[str, str]) -> bool:
    path = store.source_file(str(facts.get("file", "")))
    if path is None:
        return False
    today, measured = path.read_bytes(), facts.get("sha256")
    if sha256(today).hexdigest() != measured:
        text = kept.get(path.name, "")
        if sha256(text.encode()).hexdigest() != measured or not _same(text, today.decode()):
            return True
    # Helpers lie beside it, or above it in the same package; other libraries' files, which a run keeps too, do not.
    folders = [path.parent, *(folder for folder in path.parents[1:2] if (folder / "__init__.py").is_file())]
    for file, text in kept.items():
        helper = next((folder / file for folder in folders if (folder / file).is_file()), path)
        if helper.name != path.name and not _same(text, helper.read_text(encoding="utf-8")):
            return True
    return False


def _same(one: str, other: str) -> bool:
    return one == other or _code(one) == _code(other)  # to read code takes longer than to compare texts


@lru_cache(maxsize=256)
def _code(text: str) -> str:
    """A Python file without what changes no result: comments, docstrings, line breaks. One that is none is itself."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)
