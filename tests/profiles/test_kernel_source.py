"""Kernels are rewritten to behave as compiled. The language is not patched in this process."""

import ast
from typing import Any

import pytest
from tilescope.interpreter import kernel_source


def same(value):
    """Nothing stands in for anything."""
    return value


def test_rewrite_without_source_is_refused():
    namespace: dict[str, Any] = {}
    exec(compile(ast.parse("def unseen():\n    pass"), "<nowhere>", "exec"), namespace)  # noqa: S102
    with pytest.raises(OSError, match="source"):
        kernel_source.rewrite(namespace["unseen"], same)
