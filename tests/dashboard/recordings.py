"""The runs that the project keeps, listed when a test first asks for them: that reads every table."""

import functools

from tilescope.runs import store


@functools.cache
def recorded() -> list[store.Summary]:
    """Newest first."""
    return store.list_runs([store.recorded_dir()])
