"""The kernel library is asked for once a process, and again where that failed."""

from typing import Any

import pytest
from tilescope.jobs import questions
from tilescope_dashboard.data import catalog


def test_it_is_asked_once_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ValueError("no worker"), [{"name": "softmax"}]]

    async def describe() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(questions, "describe", describe)
    monkeypatch.setattr(catalog, "_asked", [])
    with pytest.raises(ValueError, match="no worker"):
        catalog.ask().result(10)
    assert catalog.ask().result(10) == [{"name": "softmax"}]
    assert catalog.ask() is catalog.ask()
    assert answers == []
