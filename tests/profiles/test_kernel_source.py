"""Kernels are rewritten to behave as compiled. The language is not patched in this process."""

import ast
from typing import Any

import pytest
from tilescope.interpreter import kernel_source

FACTOR = 3


def same(value):
    """Nothing stands in for anything."""
    return value


def first(x):
    return x


def kernel(x, BLOCK, function):
    # Numbers would be returned as scalar blocks, a list stays.
    return [
        function(x) * FACTOR, BLOCK.value, BLOCK > 4 and x < 1 and 1 // 0 < 1, not x or 1 // 0 < 1,
        min(x, BLOCK) + max(x, BLOCK, key),
    ]  # fmt: skip


key = 9


def test_rewrite_keeps_the_meaning_of_constants():
    rewritten = kernel_source.rewrite(kernel, same)
    assert rewritten(0, 4, first) == [0, 4, False, True, 9]
    with pytest.raises(ZeroDivisionError):  # a constant that is true does not end an or
        rewritten(1, 4, first)


def test_rewrite_without_source_is_refused():
    namespace: dict[str, Any] = {}
    exec(compile(ast.parse("def unseen():\n    pass"), "<nowhere>", "exec"), namespace)  # noqa: S102
    with pytest.raises(OSError, match="source"):
        kernel_source.rewrite(namespace["unseen"], same)
