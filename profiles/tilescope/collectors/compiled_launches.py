"""Compiles the launches of cases to data that another process compares: what the GPU would run, and with what arguments.

``python -m tilescope.collectors.compiled_launches REQUEST`` serves a request in a process of its own, because the kernels that it
imports may be those of another time. Imports torch and triton.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tilescope_kernels
import torch
from triton.runtime import driver

from tilescope.collectors import assembly, bare_ptx, compiler
from tilescope.execution import compiling, execute, offline
from tilescope.execution.launches import Launch
from tilescope.hardware import occupancy
from tilescope.table.case import Case

#: Values of a compiled kernel that name it, or that had their effect before it was PTX. All others have to be equal.
_NO_MATTER = frozenset({"hash", "name", "num_stages"})


class Unknown(ValueError):
    """A launch that cannot be compared, such as one that an autotuner chooses."""


def main(request: Path) -> None:
    """Prints a line of JSON for each case of the request: its launches, or null where they are not known.

    The request is JSON: ``package`` is the folder of the kernels to import, ``target`` an architecture (``sm_90``), ``compile``
    whether the launches are compiled, and ``cases`` a list of cases, each with the functions and grids of launches in order. Where
    they are other ones now, nothing is compiled; without grids (null) only the functions are compared, without functions nothing is.
    """
    asked = json.loads(request.read_text(encoding="utf-8"))
    found = Path(str(tilescope_kernels.__file__)).parent
    if found.resolve() != Path(asked["package"]).resolve():
        raise SystemExit(f"the kernels of {asked['package']} were asked for, and those of {found} were imported")
    compile_one = Compiler(asked["target"]) if asked["compile"] else None
    for case, names, grids in asked["cases"]:
        answer = None
        try:
            answer = of_case(Case(*case), asked["target"], compile_one, names, grids)
        except Exception as error:  # code of another time may fail in any way, and is then not known to be the same
            print(f"{case}: {type(error).__name__}: {error}", file=sys.stderr)
        print(json.dumps(answer), flush=True)


def of_case(
    case: Case,
    target: str,
    compile_one: Compiler | None = None,
    names: Sequence[str] | None = None,
    grids: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, Any]]:
    """The case's launches in order: ``function``, ``grid``, ``constants`` as text, and what a ``Compiler`` adds.

    Raises Unknown where an autotuner or PyTorch launches something, or where the functions or grids are not those given.
    """
    operators: list[str] = []
    made, _ = compiler.launches_of(case, execute.load_spec(case.kernel), target, operators)
    if operators or any(launch.config for launch in made):
        raise Unknown("PyTorch or an autotuner chooses what is launched")
    if (names is not None and [launch.name for launch in made] != list(names)) or (
        grids is not None and [list(launch.grid) for launch in made] != [list(grid) for grid in grids]
    ):
        raise Unknown("there are other launches")
    described = [
        {"function": launch.name, "grid": list(launch.grid), "constants": repr(launch.constants)} for launch in made
    ]
    if compile_one is None:
        return described
    return [known | compile_one(launch) for known, launch in zip(described, made, strict=True)]


class Compiler:
    """Compiles launches for a target, each distinct one once."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._known: dict[tuple[int, str], tuple[Any, Any, dict[str, Any]]] = {}

    def __call__(self, launch: Launch) -> dict[str, Any]:
        """The digest of the launch's ``ptx``, its run-time ``arguments`` in order, the compiled kernel's ``options``, and ``figures``.

        Raises Unknown for arguments that cannot be described, and what Triton's compiler raises.
        """
        key = id(launch.function), repr([_key(value) for value in launch.arguments.values()]) + repr(launch.constants)
        if key not in self._known:
            self._known[key] = (launch.function, *self._compiled(launch))
        _, signature, known = self._known[key]
        values = [
            part
            for name, value in launch.arguments.items()
            for part in _at_run_time(value, signature.get(name, "constexpr"))
        ]
        storages = list(dict.fromkeys(_storages(values)))
        blocks = known["figures"]["grid_blocks"] * launch.grid[0] * launch.grid[1] * launch.grid[2]
        arguments = [_described(value, storages) for value in values]
        return {**known, "arguments": arguments, "figures": {**known["figures"], "grid_blocks": blocks}}

    def _compiled(self, launch: Launch) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The types of the kernel's parameters by name, and the data of any launch of it, with the blocks of a grid of one."""
        with offline.targeting(self.target):
            kernel, _ = compiling.compiled(launch, compiler.LIMIT)
            said = kernel.metadata._asdict()
            ptx = kernel.asm["ptx"]
            _, _, registers, _, _ = driver.active.utils.load_binary(
                said["name"], kernel.asm["cubin"], said["shared"], 0
            )
        return kernel.src.signature, {
            "ptx": sha256(bare_ptx.bare(ptx, said["name"]).encode()).hexdigest(),
            "options": {name: repr(value) for name, value in sorted(said.items()) if name not in _NO_MATTER},
            "figures": {
                "grid_blocks": said["num_ctas"],
                "block_threads": assembly.block_threads(ptx) or said["num_warps"] * occupancy.WARP_THREADS,
                "registers": registers,
                "shared_memory": said["shared"],
            },
        }


def _key(value: Any) -> Any:
    """What of an argument decides how it is compiled, and maybe more."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.storage_offset() * value.element_size() % offline.ALIGNMENT
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [_key(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return [_key(part) for part in value]
    return id(value) if callable(value) else (type(value).__name__, repr(value))


def _at_run_time(value: Any, kind: Any) -> Iterator[Any]:
    """Yields the parts of an argument that the kernel gets at run time. ``kind`` is its type for the compiler."""
    if isinstance(kind, (tuple, list)):
        for part, of_part in zip(value, kind, strict=True):
            yield from _at_run_time(part, of_part)
    elif kind != "constexpr":
        yield value


def _storages(values: Sequence[Any]) -> Iterator[int]:
    for value in values:
        tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
        if isinstance(tensor, torch.Tensor):
            yield tensor.untyped_storage()._cdata


def _described(value: Any, storages: Sequence[int]) -> Any:
    """Data of a run-time argument. Of a tensor the memory is known by its number among ``storages``. Raises Unknown."""
    if isinstance(value, torch.Tensor):
        place = storages.index(value.untyped_storage()._cdata)
        return ["tensor", str(value.dtype), list(value.shape), list(value.stride()), value.storage_offset(), place]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[field.name, _described(getattr(value, field.name), storages)] for field in dataclasses.fields(value)]
        return [type(value).__name__, *fields]
    if isinstance(value, (tuple, list)):
        return [_described(part, storages) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return [type(value).__name__, repr(value)]
    if "Layout" in type(value).__name__ or isinstance(value, torch.dtype):
        return repr(value)
    raise Unknown(f"an argument is a {type(value).__name__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
