"""Kernels that have another name in another run. Pure: runs -> names."""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Iterator, Mapping

from tilescope.models import function_names
from tilescope.runs.store import LoadedRun

#: The implementation of another tool's file, and the package whose kernels keep their names.
_OF_FILES, _LIBRARY = "recorded", "tilescope_kernels"


def renamed(baseline: LoadedRun, candidate: LoadedRun) -> dict[str, str]:
    """The candidate's new kernels, with the baseline's kernel that is gone and has the same cases.

    Where several have these cases, it is the one with the most similar code, else name. Kernels of the library keep their names,
    and another tool's file has the functions of anything.
    """
    before, after = _problems(baseline), _problems(candidate)
    gone, new = (
        {k: of for k, of in one.items() if k not in other} for one, other in ((before, after), (after, before))
    )
    found: dict[str, str] = {}
    for name, problems in new.items():
        alike = [other for other, of in gone.items() if of == problems and other not in found.values()]
        only = len(alike) == 1 and list(new.values()).count(problems) == 1
        codes = {} if only else {_code(baseline, other): other for other in alike}
        close = [codes[code] for code in difflib.get_close_matches(_code(candidate, name), codes, n=1)]
        if close := alike if only else close or difflib.get_close_matches(name, alike, n=1):
            found[name] = close[0]
    return found


def told(called: Mapping[str, str]) -> Iterator[str]:
    """A line for each of ``renamed``'s kernels."""
    for name, old in called.items():
        yield f"renamed: {function_names.said(old)} → {function_names.said(name)}, which has the same cases"


def may_be(loaded: LoadedRun, kernel: str) -> bool:
    """Whether a user may have renamed the kernel: those of the library keep their names."""
    return _LIBRARY not in str(loaded.run.kernels.get(kernel, {}).get("file", ""))


def _code(loaded: LoadedRun, kernel: str) -> str:
    """The text of the kernel's function without its name; empty where the run does not keep it."""
    for text in loaded.sources.get(kernel, {}).values():
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and node.name == kernel:
                    return (ast.get_source_segment(text, node) or "").replace(kernel, "")
    return ""


def _problems(loaded: LoadedRun) -> dict[str, set[tuple[str, ...]]]:
    """The implementations, passes, workloads and configs of each kernel that a user may rename."""
    table = loaded.table[["kernel", "impl", "pass", "workload", "config"]].drop_duplicates()
    found: dict[str, set[tuple[str, ...]]] = {}
    for kernel, *problem in table[(table["impl"] != _OF_FILES)].itertuples(index=False, name=None):
        if may_be(loaded, kernel):
            found.setdefault(kernel, set()).add(tuple(problem))
    return found
