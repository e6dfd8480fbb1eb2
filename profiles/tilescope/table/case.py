"""A case: one implementation of one kernel on one workload, which yields launches when it is called."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The variable of a file that declares one kernel.
USUAL = "SPEC"


@dataclass(frozen=True)
class Case:
    """One implementation of one kernel on one workload, in one direction, perhaps with one config.

    ``kernel`` is a catalog name, or ``path/to/file.py:SPEC`` for a person's own. ``direction`` is
    ``forward`` or ``backward`` (the table's column ``pass``). ``workload`` is a workload id whose last
    part names the dtype. ``config`` is canonical text (``BLOCK_M=128,num_warps=8``), empty for the
    implementation's own choice.
    """

    kernel: str
    impl: str
    direction: str
    workload: str
    config: str = ""

    @property
    def name(self) -> str:
        """The kernel's name for people: of a user's own kernel its variable, or its file where the variable is ``SPEC``."""
        file, separator, variable = self.kernel.rpartition(":")
        if not separator or ".py:" not in self.kernel:
            return self.kernel
        return variable if variable != USUAL else re.split(r"[/\\]", file)[-1]

    @property
    def dtype(self) -> str:
        """Short dtype name, read from the workload id."""
        return next((part for part in self.workload.split("-")[1:] if not re.fullmatch(r"s\d+", part)), "")

    @property
    def id(self) -> str:
        """Unique within a run, readable: ``softmax/triton/forward/1823x781-fp32``."""
        parts = [self.kernel, self.impl, self.direction, self.workload]
        return "/".join([*parts, self.config] if self.config else parts)

    @property
    def slug(self) -> str:
        """The id as a file name. It ends in a digest, so that no two ids share one."""
        digest = hashlib.sha256(self.id.encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.id)[-80:].strip("_.") + "-" + digest

    def row(self, metric: str, value: float, source: str, **more: Any) -> dict[str, Any]:
        """One row of the table for this case. ``more`` may set launch, function and sample."""
        return {
            "kernel": self.name,
            "impl": self.impl,
            "pass": self.direction,
            "workload": self.workload,
            "dtype": self.dtype,
            "config": self.config,
            "metric": metric,
            "value": value,
            "source": source,
            **more,
        }

    def to_json(self) -> dict[str, str]:
        """A JSON-ready dictionary; ``Case(**data)`` reverses it."""
        return dataclasses.asdict(self)


def readable(case: str) -> str:
    """A case's id with ``Case.name`` in place of the file and variable of a user's own kernel."""
    file, own, rest = case.rpartition(".py:")
    variable, slash, others = rest.partition("/")
    return Case(f"{file}{own}{variable}", "", "", "").name + slash + others


def dimensions(shapes: Iterable[Sequence[int]]) -> list[int]:
    """The extents that name the sizes of tensors, in order of appearance: each as often as the tensor that has it most often."""
    found: list[int] = []
    for shape in shapes:
        for place, extent in enumerate(shape, 1):
            if found.count(extent) < list(shape[:place]).count(extent):
                found.append(extent)
    return found


def config_text(config: Mapping[str, int]) -> str:
    """Canonical text of a config, in the order of its declaration: ``BLOCK_M=128,num_warps=8``."""
    return ",".join(f"{name}={value}" for name, value in config.items())


def config_values(text: str) -> dict[str, int | str]:
    """Parameters of any tool's config, integers as int and all others as str. Empty for a text that is not a config."""
    parts = [part.partition("=") for part in filter(None, text.split(","))]
    if not all(separator and name.isidentifier() for name, separator, _ in parts):
        return {}
    return {name: int(value) if re.fullmatch(r"-?\d{1,18}", value) else value for name, _, value in parts}


def parse_config(text: str) -> dict[str, int]:
    """Reverse of ``config_text``. Raises ValueError naming the part that does not parse."""
    config: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not name.isidentifier() or not re.fullmatch(r"-?\d+", value):
            raise ValueError(f"config {text!r}: {part!r} is not NAME=INTEGER")
        config[name] = int(value)
    return config
