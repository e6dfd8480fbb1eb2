"""Kernels are rewritten to behave as compiled. The language is not patched in this process."""

import ast
from typing import Any

import pytest
import triton.language as tl
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
        function(x) * FACTOR,
        BLOCK.value,
        BLOCK > 4 and x < 1 and 1 // 0 < 1,
        not x or 1 // 0 < 1,
        min(x, BLOCK) + max(x, BLOCK, key),
    ]


key = 9


def raising():
    # A comment and
    # another above the line.
    raise KeyError


def test_rewrite_keeps_the_meaning_of_constants():
    rewritten = kernel_source.rewrite(kernel, same)
    assert rewritten(0, 4, first) == [0, 4, False, True, 9]
    with pytest.raises(ZeroDivisionError):  # a constant that is true does not end an or
        rewritten(1, 4, first)


def test_rewrite_replaces_imported_functions():
    def used(x):
        return [first(x)]

    assert kernel_source.rewrite(used, same)(2) == [2]
    before = dict(globals())
    assert kernel_source.rewrite(used, lambda value: (lambda x: x * 10) if value is first else value)(2) == [20]
    assert globals() == before


def test_rewrite_keeps_line_numbers():
    with pytest.raises(KeyError) as caught:
        kernel_source.rewrite(raising, same)()
    frame = caught.traceback[-1]
    assert frame.lineno + 1 == raising.__code__.co_firstlineno + 3
    assert str(frame.path) == __file__


def test_rewrite_evaluates_assertions_only():
    def asserting(x):
        assert x < 0, "negative"
        return [x]

    assert kernel_source.rewrite(asserting, same)(2) == [2]


def test_rewrite_without_source_is_refused():
    namespace: dict[str, Any] = {}
    exec(compile(ast.parse("def unseen():\n    pass"), "<nowhere>", "exec"), namespace)  # noqa: S102
    with pytest.raises(OSError, match="source"):
        kernel_source.rewrite(namespace["unseen"], same)


def test_rewrite_makes_assigned_numbers_scalars():
    def numbers(x):
        a, b = 1, (2.0, None)
        c: tl.constexpr = 4
        d: tl.float32 = 5.0
        return [a, *b, c, d], 6

    found, returned = kernel_source.rewrite(numbers, same)(0)
    kinds = [thing.dtype.name if isinstance(thing, tl.tensor) else thing for thing in (*found, returned)]
    assert kinds == ["int32", "fp32", None, 4, "fp32", "int32"]
