"""Proton's profile: a tree of scopes as Hatchet's JSON, by ``proton.finalize``, with the sum of a kernel's times in each scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.files import bounded_reading
from tilescope.table.run import Device

NAME = "Proton's profiles (.hatchet)"
SOURCE = "proton"
#: Proton's names of a node's sums. Kernels have the first.
TIME, COUNT = "time (ns)", "count"
_FLOPS = ("flops", "flops8", "flops16", "flops32", "flops64")
_ROOT = "ROOT"
#: Most nested scopes.
_DEPTH = bounded_reading.DEPTH


def reads(head: bytes, name: str) -> bool:
    return name.endswith((".hatchet", ".hatchet_msgpack")) or (
        head.lstrip()[:1] == b"[" and b'"children"' in head and b'"ph"' not in head
    )


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads each kernel in each of its scopes: the number of launches and their total time. Proton keeps no single launches.

    Raises Unreadable for another format of Proton, and where there are no times.
    """
    raw = bounded_reading.content(path)
    if raw[:1] not in b" \t\r\n[\x1f\xef\xff\xfe\x00":
        raise bounded_reading.Unreadable(
            "it is not Proton's JSON: write it with proton.finalize() and its default format"
        )
    try:
        found = bounded_reading.data(raw)
    except bounded_reading.Unreadable as error:
        raise bounded_reading.Unreadable(
            f"{error}: it is cut off or more than one profile, so write it again"
        ) from error
    trees = [one for one in contents.mappings(found) if "frame" in one]
    sums: dict[tuple[str, str, str], Counter[str]] = {}
    described: Mapping[str, Any] = next((one for one in reversed(contents.mappings(found)) if "frame" not in one), {})
    devices: dict[str, Device] = {}
    for kernel, scope, metrics in (node for tree in trees for node in _kernels(tree, ())):
        kind, number = contents.text(metrics.get("device_type")), contents.text(metrics.get("device_id"))
        gpu = f"GPU {number}" if number else ""
        devices.setdefault(gpu, _device(described, kind, number))
        of_kernel = sums.setdefault((kernel, scope, gpu), Counter())
        for name, value in metrics.items():
            if (amount := contents.number(value)) is not None:
                of_kernel[name] += amount  # type: ignore[assignment]
    rows = Rows(SOURCE)
    for (kernel, scope, gpu), of_kernel in sums.items():
        flops = [of_kernel[name] for name in _FLOPS if name in of_kernel]
        values = {"gpu_time": of_kernel[TIME] * 1e-9, "launches": of_kernel.get(COUNT)}
        rows.add(kernel, scope, None, {**values, "algorithm_flops": sum(flops) if flops else None}, gpu=gpu)
    contents.require(
        rows, "no kernel's time is in it: Proton records times with its default backend, between start() and finalize()"
    )
    others = sorted({name for of_kernel in sums.values() for name in of_kernel} - {TIME, COUNT, *_FLOPS})
    device, notes = contents.of_gpus(dict(sorted(devices.items())))
    if others:
        notes.append(
            f"Proton's {', '.join(map(contents.text, others[:5]))} have no place in the table and are left out"
        )
    return Contents("Proton", rows.frame(), device, notes=notes)


def _kernels(tree: Mapping[str, Any], scopes: tuple[str, ...]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields name, scope and sums of each node with a time of its own. The root is left out: its sums are always 0."""
    waiting = [(tree, scopes)]
    while waiting:
        node, scopes = waiting.pop()
        frame, metrics, children = node.get("frame"), node.get("metrics"), node.get("children")
        name = contents.name(frame.get("name", "") if isinstance(frame, dict) else "")
        if isinstance(metrics, dict) and name != _ROOT and contents.number(metrics.get(TIME)) is not None:
            yield name, contents.name("/".join(scopes)) if scopes else "outside of scopes", metrics
        within = (*scopes, name) if name != _ROOT else scopes
        if isinstance(children, list) and len(within) <= _DEPTH:
            waiting += [(child, within) for child in reversed(children) if isinstance(child, dict)]


def _device(described: Mapping[str, Any], kind: str, number: str) -> Device:
    """The GPU of that number. Proton gives its architecture and sizes but not its name."""
    one = contents.mapping(contents.mapping(described.get(kind)).get(number))
    arch = contents.text(one.get("arch"), 60)
    return contents.device(
        "", contents.target(arch) if kind == "CUDA" else arch, multiprocessors=contents.count(one.get("num_sms"))
    )
