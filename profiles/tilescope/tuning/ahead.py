"""Compiles in parallel what another autotuner is about to try one by one, so that it finds each config in Triton's cache.

Imports torch and triton.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tilescope.tuning import autotuning, compile_jobs, compile_pool

#: Fewer configs are compiled by whoever tries them as soon as by processes that are to be started.
_FEW = 3


def compile_ahead(tuner: Any, configs: Sequence[Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Has the configs of a search compiled that ``tuner`` begins with these arguments; returns how many were. Never raises.

    The search stays the tuner's own: what it times, and what it chooses. A config with a hook is left to it, for a hook may do
    anything; so is what cannot be written down, does not compile, or takes far longer than the others.
    """
    describer, jobs = compile_jobs.Describer(), dict[str, list[compile_jobs.Specialization]]()
    plain = [config for config in configs if not config.pre_hook]
    if len(plain) < _FEW or isinstance(tuner, autotuning.Tuner):  # our own compiles so by itself
        return 0
    done = 0
    with contextlib.suppress(Exception):  # whoever tries them meets it again, and says so
        for number, config in enumerate(plain):
            with describer.describing() as found:
                tuner.fn.run(*args, **{**keywords, "warmup": True}, **config.all_kwargs())
            if found:
                jobs[str(number)] = found
        for _, compiled in compile_pool.Pool(describer.code).compile(jobs):
            done += not compiled.reason
    return done
