"""Converts a kernel's code to data and back: the function, the functions it calls, and the current values of names it uses.

The kernel's module need not be importable again: it may be a notebook, a script, a closure, or a file that needs a GPU when it is
imported. Its text is kept with its name and line numbers, and only the definitions that the kernel uses are made again from it.
Installed libraries (Triton, PyTorch, Python's own) are imported. Imports torch and triton.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import dis
import enum
import importlib
import inspect
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import ConstexprFunction, JITCallable, jit

#: Packages that a worker imports. The members of other modules that a kernel uses are recorded.
LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch", "triton"}) - {"__main__"}
_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
#: Python's instructions that look a name up outside of the function; those of attributes are others.
_LOOKING_UP = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


class CannotRecord(ValueError):
    """A value of a launch that cannot be recorded. The message is one line."""


def is_function(value: Any) -> bool:
    """Whether the value is a function of Triton's language, or one that its compiler calls."""
    return isinstance(value, (JITCallable, InterpretedFunction))


class Writer:
    """Converts values to data. ``functions`` and ``texts`` (of files, by name) collect the code that they use."""

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        self.texts: dict[str, str] = {}
        self._numbers: dict[int, int] = {}
        self._files: dict[str, str] = {}
        #: The functions by number, kept alive so that their ids stay unique.
        self.originals: list[Any] = []

    def value(self, value: Any, what: str) -> Any:
        """JSON data that ``Reader.value`` converts back. Raises CannotRecord, whose message calls the value ``what``."""
        if isinstance(value, (np.generic, torch.SymInt)):
            value = value.item() if isinstance(value, np.generic) else int(value)
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, tl.constexpr):
            return {"constexpr": self.value(value.value, what)}
        return _plain(value) or self.collection(value, what) or self.reached(value, what)

    def collection(self, value: Any, what: str) -> Any:
        """Data of a tuple, list or mapping; None for any other value."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self.value(item, f"{what}.{name}") for name, item in zip(value._fields, value, strict=True)]
            return {"tuple": items, "fields": list(value._fields), "name": type(value).__name__}
        if type(value) in (tuple, list, tl.tuple, torch.Size):
            kind = "list" if type(value) is list else "tuple"
            return {kind: [self.value(item, f"{what}[{index}]") for index, item in enumerate(value)]}
        if type(value) is dict:
            return {"dict": [[self.value(k, what), self.value(v, f"{what}[{k!r}]")] for k, v in value.items()]}
        return None

    def reached(self, value: Any, what: str) -> Any:
        """Data of a function, a module, a member of one, or a value of a library's class. Raises CannotRecord otherwise."""
        if is_function(value) and not _of_library(getattr(value.fn, "__module__", "")):
            return {"function": self.function(value)}
        if isinstance(value, types.ModuleType):
            if _of_library(value.__name__):
                return {"module": value.__name__}
            raise CannotRecord(f"{what} is the module {value.__name__}")
        if member := _of_a_module(value):
            return member
        if isinstance(value, enum.Enum) and (home := _home(type(value))):
            return {"member": [home[0], f"{home[1]}.{value.name}"]}
        if dataclasses.is_dataclass(value) and (home := _home(type(value))):
            fields = {f.name: self.value(getattr(value, f.name), f"{what}.{f.name}") for f in dataclasses.fields(value)}
            return {"dataclass": list(home), "fields": fields}
        if inspect.isfunction(value):
            return {"function": self.function(value)}
        raise CannotRecord(f"{what} is a {type(value).__name__}, which cannot be recorded")

    def function(self, function: Any) -> int:
        """The number of a function in ``functions``, to which it and the functions it uses are added if missing."""
        if id(function) in self._numbers:
            return self._numbers[id(function)]
        number = self._numbers[id(function)] = len(self.functions)
        self.originals.append(function)
        entry: dict[str, Any] = {}
        self.functions.append(entry)
        python = getattr(function, "fn", function)
        lines, first = _source(function, python)
        namespace = python.__globals__ | inspect.getclosurevars(python).nonlocals
        names, missing = {}, {}
        in_defaults = dict(_in_defaults("".join(lines)))
        for name in (*_names(python.__code__), *in_defaults):
            if name not in namespace:
                continue
            try:
                names[name] = self._global(namespace[name], name, python)
            except CannotRecord as error:
                if members := self._members(namespace[name], in_defaults.get(name, ()), name, python):
                    names[name] = members
                else:
                    missing[name] = str(error)
        parameters = inspect.signature(python).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        entry |= {
            "name": python.__name__,
            "qualname": python.__qualname__,
            "module": python.__module__,
            "kind": _kind(function),
            "options": _options(function),
            "file": self._file(python, lines, first),
            "path": python.__code__.co_filename,
            "line": first,
            "source": "".join(lines),
            "annotations": {p.name: text for p in parameters if (text := _annotation(p.annotation))},
            "defaults": {name: self.value(value, f"{python.__name__}'s {name}") for name, value in defaults.items()},
            "names": names,
            "missing": missing,
        }
        return number

    def _global(self, value: Any, name: str, python: Any) -> Any:
        if isinstance(value, types.ModuleType) and not _of_library(value.__name__):
            asked = dict.fromkeys(asked for part in _parts(python.__code__) for asked in part.co_names)
            return {"members": {}, "name": value.__name__} | self._members(value, asked, name, python)
        return self.value(value, name)

    def _members(self, value: Any, names: Iterable[str], what: str, python: Any) -> dict[str, Any]:
        """Data of a stand-in with these attributes of a module or another object; empty where it has none of them."""
        members = {}
        for member in names:
            with contextlib.suppress(CannotRecord, AttributeError):
                members[member] = self._global(getattr(value, member), f"{what}.{member}", python)
        return {"members": members, "name": getattr(value, "__name__", type(value).__name__)} if members else {}

    def _file(self, python: Any, lines: list[str], first: int) -> str:
        """The name under which the function's file is kept in ``texts``."""
        path = python.__code__.co_filename
        text = "".join(linecache.getlines(path, python.__globals__))
        if "".join(text.splitlines(keepends=True)[first - 1 : first - 1 + len(lines)]) != "".join(lines):
            # The file has changed since the function was made: keep the function alone, on its own lines.
            text, path = "\n" * (first - 1) + "".join(lines), f"{path}:{first}"
        if path not in self._files:
            stem = file_stem(python.__code__.co_filename)
            taken, name, number = {*self.texts, "captured_launches.py"}, f"{stem}.py", 1
            while name in taken:
                number += 1
                name = f"{stem}-{number}.py"
            self._files[path] = name
            self.texts[name] = text
        return self._files[path]


def file_stem(path: str) -> str:
    """What a copy of the file is called: a notebook's cell by its number."""
    if is_cell(path):
        return "_".join(filter(None, ["notebook_cell", cell_number(path)]))
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in Path(path).stem) or "code"


def is_cell(file: str) -> bool:
    """Whether IPython made up the file's name for a notebook's cell."""
    return "ipykernel_" in file or file.startswith(("<ipython", "<cell"))


def cell_number(file: str) -> str:
    """The cell's number, as in ``In [5]``; empty where it is unknown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(file)
    return "".join(filter(str.isdigit, named[1])) if named else ""


def _plain(value: Any) -> Any:
    """Data of a number or a dtype; None for any other value."""
    if type(value) is float:
        return value if math.isfinite(value) and value else {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) is tl.dtype:
        return {"dtype": value.name}
    return {"torch_dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else None


def _source(function: Any, python: Any) -> tuple[list[str], int]:
    """The lines of a definition and the number of the first, as Triton read them. Raises CannotRecord."""
    if hasattr(function, "raw_src"):
        return list(function.raw_src), int(function.starting_line_number)
    try:
        return inspect.getsourcelines(python)
    except OSError as error:
        raise CannotRecord(f"the source of {python.__name__} is not known here") from error


def _kind(function: Any) -> str:
    if isinstance(function, GluonJITFunction):
        return "gluon"
    if isinstance(function, ConstexprFunction):
        return "constexpr_function"
    return "triton" if is_function(function) else "python"


def _options(function: Any) -> dict[str, Any]:
    given = {name: getattr(function, name, None) for name in _OPTIONS}
    return {name: list(v) if isinstance(v, (list, tuple)) else v for name, v in given.items() if v}


def _annotation(annotation: Any) -> str:
    """A parameter's annotation as text, if Triton uses it; otherwise empty."""
    if annotation is inspect.Parameter.empty:
        return ""
    if annotation is tl.constexpr:
        return "constexpr"
    return annotation if isinstance(annotation, str) else annotation.name if isinstance(annotation, tl.dtype) else ""


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the global and free names that code and its nested code look up."""
    for part in _parts(code):
        yield from dict.fromkeys(i.argval for i in dis.get_instructions(part) if i.opname in _LOOKING_UP)
        yield from part.co_freevars


def _parts(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _parts(constant)


def _in_defaults(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yields the names in defaults and annotations, each with all the attributes that occur there.

    Triton's compiler looks them up, but they are not in the function's code object.
    """
    definition = ast.parse(textwrap.dedent(source)).body[0]
    if isinstance(definition, ast.FunctionDef):
        annotated = [node.annotation for node in ast.walk(definition) if isinstance(node, ast.AnnAssign)]
        nodes = [node for part in (definition.args, *annotated) for node in ast.walk(part)]
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        yield from ((node.id, attributes) for node in nodes if isinstance(node, ast.Name))


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def _of_a_module(value: Any) -> dict[str, Any] | None:
    """Data of a value that can be imported (``_home``), or of a user's wrapper of such a function; None otherwise."""
    if home := _home(value):
        return {"member": list(home)}
    if is_function(value) and (home := _home(value.fn)):
        return {"wrapped": list(home), "kind": _kind(value), "options": _options(value)}
    return None


def _home(value: Any) -> tuple[str, str] | None:
    """Module and name of a library's function or class, or of a user's importable class; None for any other value."""
    described = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else getattr(value, "fn", None)
    module, name = getattr(described, "__module__", None), getattr(described, "__qualname__", None)
    if not module or not name or module == "__main__" or not (_of_library(module) or inspect.isclass(value)):
        # Built-in functions have no module.
        return ("builtins", value.__name__) if isinstance(value, types.BuiltinFunctionType) else None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name) if found is value else None


class Reader:
    """Converts a ``Writer``'s data back to values. ``folder`` holds the files of the code."""

    def __init__(self, functions: list[Mapping[str, Any]], folder: Path) -> None:
        self._data, self._folder = functions, folder
        self._made: dict[int, Any] = {}

    def value(self, data: Any) -> Any:
        """The value of data. Raises ValueError for invalid data, ImportError for a library that is not installed."""
        if not isinstance(data, Mapping):
            return data
        if "function" in data:
            return self.function(int(data["function"]))
        for form, make in self._forms().items():
            if form in data:
                return make(data)
        raise ValueError(f"a captured value of an unknown form: {', '.join(map(str, data))}")

    def _forms(self) -> dict[str, Any]:
        return {
            "float": lambda d: float(d["float"]),
            "complex": lambda d: complex(*d["complex"]),
            "constexpr": lambda d: tl.constexpr(self.value(d["constexpr"])),
            "dtype": lambda d: tl.dtype(d["dtype"]),
            "torch_dtype": lambda d: getattr(torch, d["torch_dtype"]),
            "tuple": self._tuple,
            "list": lambda d: [self.value(item) for item in d["list"]],
            "dict": lambda d: {self.value(key): self.value(item) for key, item in d["dict"]},
            "module": lambda d: importlib.import_module(d["module"]),
            "member": lambda d: _member(*d["member"]),
            "wrapped": lambda d: _wrap(_member(*d["wrapped"]), d["kind"], d["options"]),
            "dataclass": lambda d: _member(*d["dataclass"])(**{n: self.value(v) for n, v in d["fields"].items()}),
            "members": self._stand_in,
        }

    def _tuple(self, data: Mapping[str, Any]) -> Any:
        items = [self.value(item) for item in data["tuple"]]
        if "fields" not in data:
            return tuple(items)
        return collections.namedtuple(data["name"], data["fields"])(*items)

    def _stand_in(self, data: Mapping[str, Any]) -> types.ModuleType:
        module = types.ModuleType(data["name"])
        vars(module).update({name: self.value(value) for name, value in data["members"].items()})
        return module

    def function(self, number: int) -> Any:
        """The function of that number, made once."""
        if number not in self._made:
            data = self._data[number]
            python = self._python(data)
            given = {name: self.value(value) for name, value in data["defaults"].items()}
            python.__defaults__ = tuple(given.values()) or None
            # Before its names are resolved: it may call itself.
            self._made[number] = _wrap(python, data["kind"], data["options"])
            python.__globals__.update({name: self.value(value) for name, value in data["names"].items()})
        return self._made[number]

    def _python(self, data: Mapping[str, Any]) -> Any:
        """The plain function in a namespace of its own, with its file's name and line numbers."""
        tree = ast.parse(textwrap.dedent(data["source"]))
        ast.increment_lineno(tree, int(data["line"]) - 1)
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            raise ValueError(f"{data['name']} is not written as a function")
        definition.decorator_list = []
        definition.returns = None
        arguments = definition.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            text = data["annotations"].get(argument.arg)
            argument.annotation = ast.Constant(text) if text else None
        arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
        ast.fix_missing_locations(tree)
        namespace: dict[str, Any] = {"__name__": data["module"], "__builtins__": __builtins__}
        exec(compile(tree, str(self._folder / data["file"]), "exec"), namespace)  # noqa: S102 (the kernel itself)
        python = namespace[data["name"]]
        python.__qualname__ = data["qualname"]
        return python


def _wrap(python: Any, kind: str, options: Mapping[str, Any]) -> Any:
    if kind == "python":
        return python
    if kind == "constexpr_function":
        return ConstexprFunction(python)
    return (gluon.jit if kind == "gluon" else jit)(python, **options)


def _member(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
