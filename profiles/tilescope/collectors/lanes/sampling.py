"""Makes a Chrome trace of a few programs of each launch with records. Their buffers are torch's tensors, on a GPU or not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tilescope.collectors.lanes import buffer, lowering
from tilescope.hardware import device

if TYPE_CHECKING:
    from tilescope.collectors.lanes.recording import Launched

#: Programs of a launch that are sampled, and the most records of a launch that are kept.
SAMPLE, MOST = 8, 60_000


def trace(
    launches: list[Launched],
    plain: Mapping[str, list[float]],
    slow: Mapping[str, list[float]],
    kinds: list[str],
    *,
    most: int = MOST,
    left_out: int = 0,
) -> dict[str, Any]:
    """The Chrome trace of launches with records of these ``kinds``. ``plain`` and ``slow`` are seconds of each kernel by name without
    records and with them. At most about ``most`` records of a launch are kept.
    ``left_out`` launches of the call are not among them.
    """
    gpu = device.detect() if device.unavailable() is None else None
    rates = {one.name: one.value / gpu.multiprocessors for one in gpu.ceilings} if gpu else {}
    counts = Counter(launched.function for launched in launches)
    events: list[dict[str, Any]] = []
    told = []
    for number, launched in enumerate(launches):
        operations = {scope: asdict(one) for scope, one in enumerate(launched.scopes) if not isinstance(one, str)}
        scopes = {scope: one for scope, one in enumerate(launched.scopes) if isinstance(one, str)}
        each = counts[launched.function]
        times = {
            key: float(np.median(found[launched.function])) / each
            for key, found in (("plain", plain), ("recorded", slow))
            if found.get(launched.function)
        }
        sampled = _sampled(launched, most)
        clock = buffer.rate(sampled)
        if math.isnan(clock):
            clock = device.clocks().get("sm_clock", math.nan) * 1e-9
        told.append(
            {
                "function": launched.function, "file": launched.file, "grid": launched.grid, "warps": launched.warps,
                "kinds": kinds, **times, "clock": clock * 1e9, "operations": operations, "scopes": scopes,
                "programs": [program.number for program in sampled], "lost": sum(sum(p.lost) for p in sampled),
                "resident": _resident(launched), "tail": _tail(launched), "rates": rates,
                "spent": [(program.end - program.start) * 1e-9 for program in sampled],
            }
        )  # fmt: skip
        events += _events(number, launched, sampled, clock, most // max(1, len(sampled)))
    return {"displayTimeUnit": "ns", "traceEvents": events, "tilescope": {"launches": told, "left_out": left_out}}


def heads(launched: Launched) -> np.ndarray:
    """The head of each program's part of the buffer."""
    words = launched.buffer.view(-1, launched.size)
    found: np.ndarray = words[:, : lowering.first(launched.warps) * 4].cpu().numpy().view(np.uint32)
    return found


def _resident(launched: Launched) -> int:
    """The most programs that ran on one SM at the same time."""
    all_heads = heads(launched)
    most = 0
    for sm in np.unique(all_heads[:, 2]):
        own = all_heads[all_heads[:, 2] == sm]
        changes = np.concatenate([buffer.begun(own), buffer.ended(own)])
        steps = np.repeat([1, -1], len(own))
        # An end before a start at the same time.
        most = max(most, int(np.cumsum(steps[np.lexsort([steps, changes])]).max()))
    return most


def _tail(launched: Launched) -> float:
    """The share of the SMs' time in which an SM has ended its last program, and others have not."""
    all_heads = heads(launched)
    begun, ended = buffer.begun(all_heads), buffer.ended(all_heads)
    last = [ended[all_heads[:, 2] == sm].max() for sm in np.unique(all_heads[:, 2])]
    whole = ended.max() - begun.min()
    return float((ended.max() - np.mean(last)) / whole) if whole else 0.0


def _sampled(launched: Launched, most: int) -> list[buffer.Program]:
    """Programs of a launch, evenly spaced by their starts: of the first wave, of the last, and between them."""
    words = launched.buffer.view(-1, launched.size)
    all_heads = heads(launched)
    order = np.argsort(buffer.begun(all_heads), kind="stable")
    each = buffer.counts(all_heads).max(axis=0).sum() // 2  # an operation's records have two words at least
    fit = max(1, min(SAMPLE, int(most // max(1, each)), len(order)))
    places = np.unique(np.linspace(0, len(order) - 1, fit).round().astype(int))
    chosen = [words[int(order[at])].cpu().numpy().view(np.uint32) for at in places]
    return [buffer.program(own, launched.warps, launched.stretches) for own in chosen]


def _events(
    number: int, launched: Launched, sampled: list[buffer.Program], clock: float, most: int
) -> list[dict[str, Any]]:
    """Events of the Trace Event Format, with times in microseconds after the launch's first sampled program began.

    Of a program with more than ``most`` spans the first are kept.
    """
    events: list[dict[str, Any]] = []
    first = min((program.start for program in sampled), default=0)
    for program in sampled:
        process = number * 1_000_000 + program.number
        said = f"{launched.function}: program {program.number}, SM {program.sm}"
        events.append(_name("process_name", process, 0, said))
        found = [(*span, warp) for warp, own in enumerate(program.warps) for span in buffer.spans(own)]
        found.sort(key=lambda span: (span[1], -span[2]))
        last = found[most][1] if len(found) > most else max((span[2] for span in found), default=0)
        zero, offset = min((span[1] for span in found), default=0), (program.start - first) * 1e-3
        for warp in sorted({span[3] for span in found}):
            events.append(_name("thread_name", process, warp, f"warp {warp}"))
        for scope, start, end, warp in found:
            if start > last:
                break
            known = launched.scopes[scope]
            name, kind = (known, known) if isinstance(known, str) else (known.scope, known.kind)
            events.append(
                {
                    "ph": "X", "cat": kind, "name": name, "pid": process, "tid": warp,
                    "ts": round(offset + (start - zero) / clock * 1e-3, 4),
                    "dur": round((min(end, last) - start) / clock * 1e-3, 4),
                    "args": {"launch": number, "program": program.number, "operation": scope},
                }
            )  # fmt: skip
    return events


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
