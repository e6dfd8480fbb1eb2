"""Makes a Chrome trace of a few programs of each launch with records. Their buffers are torch's tensors, on a GPU or not."""

from __future__ import annotations

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
#: The most that the step of the SMs' shared timer may be of a launch's time whose tail is known.
_COARSE = 0.1


def trace(
    launches: list[Launched],
    plain: Mapping[str, list[float]],
    slow: Mapping[str, list[float]],
    kinds: list[str],
    *,
    most: int = MOST,
    left_out: int = 0,
    clock: float = float("nan"),
) -> dict[str, Any]:
    """The Chrome trace of launches with records of these ``kinds``. ``plain`` and ``slow`` are seconds of each kernel by name without
    records and with them. At most about ``most`` records of a launch are kept. ``left_out`` launches of the call are not among them.
    ``clock`` is the hertz of the SMs' clock after the call, for launches too short to tell it.
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
        ran = buffer.times(heads(launched), clock * 1e-9)
        sampled = _sampled(launched, ran, most)
        if ran.step <= _COARSE * ran.end.max():
            times["tail"] = _tail(ran)
        told.append(
            {
                "function": launched.function, "file": launched.file, "grid": launched.grid, "warps": launched.warps,
                "kinds": kinds, "without": list(launched.without), **times, "clock": ran.rate * 1e9, "operations": operations,
                "scopes": scopes,
                "programs": [program.number for _, program in sampled], "lost": sum(sum(p.lost) for _, p in sampled),
                "resident": _resident(ran), "rates": rates, "step": ran.step * 1e-9, "longest": ran.longest * 1e-9,
                "spent": [program.cycles / ran.rate * 1e-9 for _, program in sampled],
            }
        )  # fmt: skip
        events += _events(number, launched, sampled, ran.rate, most // max(1, len(sampled)))
    return {"displayTimeUnit": "ns", "traceEvents": events, "tilescope": {"launches": told, "left_out": left_out}}


def heads(launched: Launched) -> np.ndarray:
    """The head of each program's part of the buffer."""
    words = launched.buffer.view(-1, launched.size)
    found: np.ndarray = words[:, : lowering.first(launched.warps) * 4].cpu().numpy().view(np.uint32)
    return found


def _resident(ran: buffer.Times) -> int:
    """The most programs that ran on one SM at the same time."""
    most = 0
    for sm in range(ran.sm.max() + 1):
        own = ran.sm == sm
        changes = np.concatenate([ran.start[own], ran.end[own]])
        steps = np.repeat([1, -1], own.sum())
        # An end before a start at the same time.
        most = max(most, int(np.cumsum(steps[np.lexsort([steps, changes])]).max()))
    return most


def _tail(ran: buffer.Times) -> float:
    """The share of the SMs' time in which an SM has ended its last program, and others have not."""
    last = np.zeros(ran.sm.max() + 1)
    np.maximum.at(last, ran.sm, ran.end)
    return float(1 - last.mean() / last.max())


def _sampled(launched: Launched, ran: buffer.Times, most: int) -> list[tuple[float, buffer.Program]]:
    """Programs of a launch with nanoseconds of their starts, evenly spaced: of the first wave, of the last, and between them."""
    words = launched.buffer.view(-1, launched.size)
    order = np.argsort(ran.start, kind="stable")
    each = buffer.counts(heads(launched)).max(axis=0).sum() // 2  # an operation's records have two words at least
    fit = max(1, min(SAMPLE, int(most // max(1, each)), len(order)))
    places = order[np.unique(np.linspace(0, len(order) - 1, fit).round().astype(int))].tolist()
    parts = [words[at].cpu().numpy().view(np.uint32) for at in places]
    found = [buffer.program(own, launched.warps, launched.stretches) for own in parts]
    return list(zip(ran.start[places].tolist(), found, strict=True))


def _events(
    number: int, launched: Launched, sampled: list[tuple[float, buffer.Program]], rate: float, most: int
) -> list[dict[str, Any]]:
    """Events of the Trace Event Format, with times in microseconds after the launch's first program began.

    Of a program with more than ``most`` spans the first are kept.
    """
    events: list[dict[str, Any]] = []
    for began, program in sampled:
        process = number * 1_000_000 + program.number
        said = f"{launched.function}: program {program.number}, SM {program.sm}"
        events.append(_name("process_name", process, 0, said))
        found = [(*span, warp) for warp, own in enumerate(program.warps) for span in buffer.spans(own)]
        found.sort(key=lambda span: (span[1], -span[2]))
        last = found[most][1] if len(found) > most else max((span[2] for span in found), default=0)
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
                    "ts": round((began + start / rate) * 1e-3, 4),
                    "dur": round((min(end, last) - start) / rate * 1e-3, 4),
                    "args": {"launch": number, "program": program.number, "operation": scope},
                }
            )  # fmt: skip
    return events


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
