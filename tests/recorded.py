"""Recordings by their titles, which stay when a kernel is recorded again."""

import functools
import json
from importlib import metadata
from pathlib import Path

import pytest

#: Marks tests of what Triton 3.6 compiled for the recordings.
AS_RECORDED = pytest.mark.skipif(
    not metadata.version("triton").startswith("3.6."), reason="the recordings are of Triton 3.6"
)
RECORDED = Path(__file__).parents[1] / "profiles" / "recorded"


@functools.cache
def _by_title() -> dict[str, str]:
    runs = (json.loads(path.read_text()) for path in sorted(RECORDED.glob("*/run.json")))
    return {run["title"]: run["id"] for run in runs}


def recorded(title: str) -> str:
    """The id of the recording of that title. Raises KeyError where there is none."""
    return _by_title()[title]
