"""Writes the definitions of a notebook's cells to a file that a worker can import.

Triton needs a kernel's source. A cell has no file, but IPython keeps its source in ``linecache``. Everything that a function
refers to is written too: definitions of other cells as source, modules and their members as imports, plain values as literals.
Nothing is pickled. Imports neither torch nor triton.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import hashlib
import inspect
import linecache
import math
import re
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope_kernels.spec import KernelSpec

_HEAD = '"""What a notebook\'s cells defined, as Tilescope wrote it down for its worker."""\n\nfrom __future__ import annotations\n'


class CannotCarry(ValueError):
    """A value of a cell's code that cannot be written to a file. The message is one line with a remedy."""


def write_spec(spec: KernelSpec, folder: Path) -> str:
    """Writes a module with ``spec`` into ``folder``; returns ``path/to/file.py:NAME``, as ``load_spec`` takes it.

    The file is named by its content, so that the same cells give the same file. Raises CannotCarry for values that cannot be
    written, OSError for a folder that cannot be written.
    """
    module = _Module()
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    draw = module.expression(fields.pop("inputs"), f"the inputs of {spec.name}")
    written = [f"{name}={module.expression(value, f'{name} of {spec.name}')}" for name, value in fields.items()]
    kind = module.expression(type(spec), "KernelSpec")
    name = re.sub(r"\W", "_", spec.name) or "_"
    if not name.isidentifier():
        name = f"_{name}"
    while name in module.used:
        name += "_"
    text = "\n\n".join(
        [
            _HEAD + "\n".join([*module.folders, *module.imports]),
            *module.definitions,
            # A function of this file, because a run's kernel is identified by the file of its inputs.
            f"_draw = {draw}\n\n\ndef _inputs(workload, device):\n    return _draw(workload, device)",
            f"{name} = {kind}(\n    inputs=_inputs,\n    " + ",\n    ".join(written) + ",\n)\n",
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(text, encoding="utf-8")
    return f"{path}:{name}"


def python_function(value: Any) -> Any:
    """The Python function inside ``triton.jit``, ``triton.autotune`` or a decorator; None for other values."""
    while not inspect.isfunction(value):
        inner = getattr(value, "fn", None) or getattr(value, "__wrapped__", None)
        if inner is None or inner is value or inspect.isclass(value):
            return None
        value = inner
    return inspect.unwrap(value)


class _Module:
    """The module being written: imports, then definitions, each after those it needs."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        #: Lines that have a worker look for modules where this process found them.
        self.folders: dict[str, None] = {}
        self.definitions: list[str] = []
        self.names: dict[str, Any] = {}
        #: Names that definitions look up when they run, which must not be rebound.
        self.used: set[str] = set()

    def define(self, name: str, value: Any) -> None:
        if name in self.names:
            if self.names[name] is not value:
                raise CannotCarry(f"two things are called {name!r}: give one of them another name")
            return
        self.names[name] = value
        home = _home(value)
        if isinstance(value, ModuleType):
            self.bring(value.__name__, f"import {value.__name__} as {name}")
        elif home:
            self.bring(home[0], f"from {home[0]} import {home[1]} as {name}")
        elif python_function(value) or inspect.isclass(value):
            self.source(name, value)
        else:
            self.definitions.append(f"{name} = {self.expression(value, repr(name))}")

    def bring(self, module: str, line: str) -> None:
        self.imports[line] = None
        if folder := _own_folder(module):
            self.folders |= dict.fromkeys(["import sys", f"sys.path.append({folder!r})"])

    def source(self, name: str, value: Any) -> None:
        """Writes a definition's source, after everything that it refers to."""
        python = python_function(value)
        own = getattr(python or value, "__name__", name)
        if python and (own == "<lambda>" or "<locals>" in python.__qualname__):
            what = "a lambda" if own == "<lambda>" else "defined inside another function"
            raise CannotCarry(f"{name!r} is {what}: write it with def, at the top of a cell")
        text, namespace = _text(value)
        if python is not value and namespace.get(own) is not value and not inspect.isclass(value):
            raise CannotCarry(
                f"{own!r} is not as its cell defines it: put what wraps it above the def, or run the cell again"
            )
        if own != name:
            self.define(own, value)
            self.definitions.append(f"{name} = {own}")
            return
        for found in _names(text):
            if found != name and found in namespace:
                self.define(found, namespace[found])
                self.used.add(found)
            elif found != name and not hasattr(builtins, found):
                raise CannotCarry(f"{name!r} uses {found!r}, which is not defined: run the cell that defines it")
        self.definitions.append(text)

    def expression(self, value: Any, what: str) -> str:
        """Python text that evaluates to ``value``. ``what`` names it in the message of CannotCarry."""
        known = _literal(value) or self.collection(value, what) or self.of_a_library(value, what)
        if known:
            return known
        if home := _home(value):
            alias = f"_{home[0].rpartition('.')[2]}_{home[1]}"
            self.bring(home[0], f"from {home[0]} import {home[1]} as {alias}")
            return alias
        if python_function(value) or inspect.isclass(value):
            name = str(getattr(python_function(value) or value, "__name__", what))
            self.define(name, value)
            return name
        if dataclasses.is_dataclass(value):
            arguments = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            return self.call(type(value), arguments, what)
        raise CannotCarry(
            f"{what} is a {type(value).__name__}, which cannot be given to the worker: make it inside the function, "
            "or hand it over as an input"
        )

    def collection(self, value: Any, what: str) -> str | None:
        """Text of a container or a partial; None for any other value."""
        if type(value) in (tuple, list, set, frozenset):
            parts = "".join(f"{self.expression(item, what)}, " for item in value)
            form = {"tuple": "({})", "list": "[{}]", "set": "set([{}])", "frozenset": "frozenset([{}])"}[
                type(value).__name__
            ]
            return form.format(parts)
        if isinstance(value, Mapping):
            pairs = (f"{self.expression(k, what)}: {self.expression(v, what)}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, functools.partial):
            self.imports["import functools"] = None
            named = (f"{name}={self.expression(item, what)}" for name, item in value.keywords.items())
            placed = (self.expression(item, what) for item in (value.func, *value.args))
            return f"functools.partial({', '.join([*placed, *named])})"
        return None

    def of_a_library(self, value: Any, what: str) -> str | None:
        """Text of a dtype, device, constant or config of torch or Triton; None for any other value."""
        kind = type(value)
        library = kind.__module__.partition(".")[0]
        if library not in ("torch", "triton"):
            return None
        if kind.__name__ in ("dtype", "device"):
            self.imports["import torch" if library == "torch" else "import triton.language"] = None
            return f"torch.{value!r}" if kind.__name__ == "device" else repr(value)
        if kind.__name__ == "constexpr":
            self.imports["import triton.language"] = None
            return f"triton.language.constexpr({self.expression(value.value, what)})"
        if kind.__name__ == "Config":
            return self.call(kind, {name: item for name, item in vars(value).items() if item is not None}, what)
        return None

    def call(self, kind: type, arguments: Mapping[str, Any], what: str) -> str:
        parts = (f"{name}={self.expression(value, f'{name} of {what}')}" for name, value in arguments.items())
        return f"{self.expression(kind, what)}({', '.join(parts)})"


def _literal(value: Any) -> str | None:
    """Text of a plain value; None for any other."""
    if type(value) is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value) if value is None or type(value) in (bool, int, float, str, bytes) else None


def _own_folder(module: str) -> str:
    """The folder to look for a person's own module in; empty for one that is installed, which a worker finds by itself."""
    root = sys.modules[module.partition(".")[0]]
    place = next(iter(getattr(root, "__path__", ())), None) or getattr(root, "__file__", None)
    if place is None or root.__name__ in ("tilescope", "tilescope_kernels"):
        return ""
    folder = Path(place).resolve().parent
    installed = any(folder.is_relative_to(path) for path in map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    return "" if installed else str(folder)


def _home(value: Any) -> tuple[str, str] | None:
    """The module and name to import ``value`` by; None where it cannot be imported."""
    described = value if hasattr(value, "__module__") and hasattr(value, "__name__") else python_function(value)
    name = getattr(described, "__name__", None)
    if isinstance(value, ModuleType) or not name:
        return None
    # Operators of torch have no ``__module__``.
    for module in (getattr(described, "__module__", None), "torch", "torch.nn.functional"):
        loaded = sys.modules.get(module) if module and module != "__main__" else None
        if loaded is not None and getattr(loaded, name, None) is value:
            return str(module), str(name)
    return None


def _text(value: Any) -> tuple[str, dict[str, Any]]:
    """The source of a cell's function or class with its decorators, and the namespace of its names."""
    python = python_function(value) or next((f for f in map(python_function, vars(value).values()) if f), None)
    name = getattr(value, "__name__", getattr(python, "__name__", "this"))
    if python is None:
        raise CannotCarry(f"class {name} has no function to find its source by: put it into a file and import it")
    file = inspect.getfile(python)
    try:
        if not inspect.isclass(value):
            return textwrap.dedent(inspect.getsource(python)), python.__globals__
        lines = linecache.getlines(file, python.__globals__)
        found = [n for n in ast.parse("".join(lines)).body if isinstance(n, ast.ClassDef) and n.name == value.__name__]
        first = min([found[-1].lineno, *(mark.lineno for mark in found[-1].decorator_list)])
        return "".join(lines[first - 1 : found[-1].end_lineno]), python.__globals__
    except (OSError, SyntaxError, IndexError) as error:
        raise CannotCarry(
            f"the source of {name!r} is not known here: put it into a file, and name it as path/to/file.py:SPEC"
        ) from error


def _names(text: str) -> Iterator[str]:
    """Global names that a definition looks up, when it is created (decorators, defaults) or when it runs."""
    tables = [symtable.symtable("from __future__ import annotations\n" + text, "cell", "exec")]
    seen: dict[str, None] = {}
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or (top and not symbol.is_imported())):
                seen[symbol.get_name()] = None
        tables += table.get_children()
    yield from seen
