"""Compiles another autotuner's configs in parallel before it tries them, so that it finds each in Triton's cache.

Imports torch and triton.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tilescope.tuning import autotuning, compile_jobs, compile_pool

#: Fewest configs for which starting processes saves time.
_FEW = 3


def compile_ahead(tuner: Any, configs: Sequence[Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Compiles the configs of a search that ``tuner`` begins with these arguments; returns how many compiled. Never raises.

    The tuner still times and chooses by itself. It also compiles the remaining configs: those with a hook, which may do
    anything, those whose code cannot be recorded, and those that fail or take far longer than the others.
    """
    describer, jobs = compile_jobs.Describer(), dict[str, list[compile_jobs.Specialization]]()
    plain = [config for config in configs if not config.pre_hook]
    if len(plain) < _FEW or isinstance(tuner, autotuning.Tuner):  # it compiles in parallel by itself
        return 0
    done = 0
    with contextlib.suppress(Exception):  # the tuner's own attempt reports it
        for number, config in enumerate(plain):
            with describer.describing() as found:
                tuner.fn.run(*args, **{**keywords, "warmup": True}, **config.all_kwargs())
            if found:
                jobs[str(number)] = found
        for _, compiled in compile_pool.Pool(describer.code).compile(jobs):
            done += not compiled.reason
    return done
