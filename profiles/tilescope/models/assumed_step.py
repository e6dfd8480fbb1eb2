"""A step as it would be on another GPU, by the roofs: a prediction. Pure: step -> step.

Each kernel keeps its distance from its roof, and the CPU its pace: a launch begins once the CPU has called it and its stream is free. Copies
to the CPU, collectives and kernels without a known floor keep their time.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from tilescope.hardware.ceilings import PRODUCTS, Product
from tilescope.models import ledger
from tilescope.table.run import Device
from tilescope.table.step import Step, StepLaunch

#: Seconds within which a call that waited for the GPU returned with the last launch.
_AT_ONCE = 2e-4


def product(name: str) -> Device:
    """The one product whose name has these letters, by its datasheet. Raises ValueError naming the known ones."""
    found: list[Product] = [one for one in PRODUCTS if name.lower() in one.name.lower()]
    if len(found) != 1:
        raise ValueError(f"{name!r} is not one known GPU: name one of {', '.join(one.name for one in PRODUCTS)}")
    (one,) = found
    return Device(one.name, one.target, one.multiprocessors, one.l2_bytes, one.memory_bytes, False, one.ceilings)


def on(step: Step, device: Device, other: Device) -> Step:
    """The step of ``device`` as predicted for ``other``. It has neither counters nor a time without a profiler."""
    before: dict[str, float] = defaultdict(float)
    after: dict[str, float] = defaultdict(float)
    stops = sorted(step.stops, key=lambda stop: stop.end)
    later, ends, launches = 0.0, (0.0, 0.0), list[StepLaunch]()
    for launch in sorted(step.launches, key=lambda one: one.start):
        call = launch.start if launch.call is None else launch.call
        while stops and stops[0].end <= call:
            # The CPU went on once the GPU was done, which is earlier or later now.
            if 0 <= stops.pop(0).end - ends[0] < _AT_ONCE:
                later = ends[1] - ends[0]
        floors = ledger.floor(step, launch, device), ledger.floor(step, launch, other)
        ratio = floors[1].seconds / floors[0].seconds if floors[0] and floors[1] and floors[0].seconds else 1.0
        lag = launch.start - max(call, before[launch.stream])
        start = max(call + later, after[launch.stream]) + lag
        launches.append(dataclasses.replace(launch, start=start, duration=launch.duration * ratio, call=call + later))
        before[launch.stream], after[launch.stream] = launch.end, launches[-1].end
        ends = max(ends[0], launch.end), max(ends[1], launches[-1].end)
    moved = ends[1] - ends[0]
    # The next step begins when the CPU has called it, and the GPU is done.
    following = None if step.next_call is None else step.next_call + later
    window = max(step.window + moved, ends[1], following or 0.0)
    first = min((one.start for one in launches), default=0.0)
    return dataclasses.replace(
        step,
        launches=tuple(dataclasses.replace(one, start=one.start - first, call=None if one.call is None else one.call - first) for one in launches),
        window=window - first, plain=None, cpu=None, next_call=None if following is None else following - first, away=(), stops=(), tried=(),
        power={},
    )  # fmt: skip
