"""Times on an assumed GPU: none. What would be timed is called once, and its time is NaN.

Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from triton import testing

if TYPE_CHECKING:
    from tilescope.execution.assumed_answers import Answers


class NotTimed(float):
    """NaN in place of a time. Numbers of repetitions that are computed from it (``int(100 / time)``) are 0."""

    def __new__(cls) -> NotTimed:
        return super().__new__(cls, math.nan)

    def _itself(self, *_: Any) -> NotTimed:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __neg__ = __abs__ = _itself
    __mod__ = __rmod__ = __pow__ = __rpow__ = _itself

    def __int__(self) -> int:
        return 0

    __trunc__ = __floor__ = __ceil__ = __int__

    def __round__(self, *digits: Any) -> Any:
        return self if digits else 0


def do_bench(answers: Answers) -> Iterator[tuple[Any, str, Any]]:
    for name in ("do_bench", "do_bench_cudagraph"):
        asked = inspect.signature(getattr(testing, name))
        yield testing, name, functools.partial(_do_bench, answers, f"triton.testing.{name}", asked)
    yield testing.Mark, "run", functools.partial(_report, testing.Mark.run)


def _do_bench(answers: Answers, query: str, asked: inspect.Signature, *args: Any, **kwargs: Any) -> Any:
    """Calls the function once. Returns NaN in the form in which Triton's function returns times."""
    given = asked.bind(*args, **kwargs).arguments
    given["fn"]()
    time, quantiles = answers.not_timed(query), given.get("quantiles")
    if quantiles:
        return [time] * len(quantiles) if len(quantiles) > 1 else time
    return [time] if given.get("return_mode") == "all" else time


def _report(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``Mark.run`` of ``perf_report``, which neither draws nor writes: there are no times, and matplotlib may be absent."""
    given = inspect.signature(original).bind(*args, **kwargs)
    given.arguments |= {"show_plots": False, "save_path": ""}
    drawing = ("matplotlib", "matplotlib.pyplot")
    known = {name: sys.modules[name] for name in drawing if name in sys.modules}
    sys.modules.update(dict.fromkeys(drawing, mock.MagicMock()))
    try:
        return original(*given.args, **given.kwargs)
    finally:
        # mock.patch.dict would also forget the modules that the benchmark imported, and torch's cannot be imported twice.
        for name in drawing:
            del sys.modules[name]
        sys.modules.update(known)


def print_performance(answers: Answers, utils: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the replacement of the benchmark function with which files of torch.compile end."""

    def once(model: Any, example_inputs: Any = (), *_: Any, **__: Any) -> float:
        model(*example_inputs)
        return answers.not_timed("torch._inductor.utils.print_performance")

    yield utils, "print_performance", once


def timers(answers: Answers) -> Iterator[tuple[Any, str, Any]]:
    """Yields replacements of the methods of ``torch.utils.benchmark.Timer``, which would time the CPU."""
    from torch.utils import benchmark  # noqa: PLC0415 - takes a third of a second: only once a program has imported it

    def measure(timer: Any, *_: Any, **__: Any) -> benchmark.Measurement:
        timer._timer.timeit(1)
        time = answers.not_timed("torch.utils.benchmark.Timer")
        return benchmark.Measurement(1, [time], timer._task_spec)

    for name in ("timeit", "blocked_autorange", "adaptive_autorange"):
        yield benchmark.Timer, name, measure
