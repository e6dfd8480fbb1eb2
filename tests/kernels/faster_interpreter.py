"""Triton's interpreter, quicker: for processes that interpret every kernel they launch. ``install`` changes three things in it.

It patches ``triton.language`` anew at every call of a function, also of one that a kernel calls, which is up to half of its
time: here once a function, and for good. And it reduces by a function of one's own number by number, minutes for long rows:
here neighbours are combined, all pairs at once, then the results, as on a GPU. And it computes every sum, difference and
product of integers twice, to see whether it overflows, which none of these few numbers can.
"""

from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter


def install():
    """Once a process."""
    patch, nothing = interpreter._patch_lang, interpreter._LangPatchScope()
    patched: set[Callable[..., Any]] = set()

    def once(function):
        if function not in patched:
            patched.add(function)
            patch(function)
        return nothing

    interpreter._patch_lang = once
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.ReduceOps.generic_reduce = _by_pairs


def _by_pairs(self, inputs):
    """``ReduceOps.generic_reduce`` of blocks, whose extents are powers of 2."""
    rank = inputs[0].handle.data.ndim
    inputs, axis = self.unravel(inputs, self.axis)
    dtypes, arrays = [value.dtype for value in inputs], [value.handle.data for value in inputs]
    while (length := arrays[0].shape[axis]) > 1:
        assert length % 2 == 0, f"{length} elements"
        halves = [array.take(range(first, length, 2), axis) for first in (0, 1) for array in arrays]
        combined = self.combine_fn.fn(*map(self.to_tensor, halves, dtypes * 2))
        arrays = [one.handle.data for one in (combined if isinstance(combined, tuple) else (combined,))]
    if not self.keep_dims:
        arrays = [array.squeeze(axis) for array in arrays]
    elif self.axis is None:
        arrays = [array.reshape((1,) * rank) for array in arrays]
    return [
        self.to_tensor(array if array.ndim else array.item(), dtype)
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]
