"""Compares a live call with its reference. Imports torch when it is used, which the user's arguments have imported already."""

from __future__ import annotations

from typing import Any

from tilescope.notebook import user_kernel


def compared(result: Any, given: Any, expected: Any, given_reference: Any) -> str:
    """The error of the function's results against the reference's, in one line; of its arguments where it returns no tensor."""
    from tilescope.collectors import check  # noqa: PLC0415

    ours, theirs = user_kernel.tensors(result), user_kernel.tensors(expected)
    if not ours and not theirs:
        ours, theirs = user_kernel.tensors(given), user_kernel.tensors(given_reference)
    if len(ours) != len(theirs):
        return f"check failed: the function gives {len(ours)} tensors, the reference {len(theirs)}"
    worst, said = 0.0, ""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        dtype = str(one.dtype).removeprefix("torch.")
        allowed = user_kernel.TOLERANCE.get(_SHORT.get(dtype, ""), 0.0)
        try:
            error = check.relative_errors(one.detach(), other.detach().double(), f"result {number}")
        except check.CheckFailed as failed:
            return f"check failed: {failed}"
        share = max(error.whole / allowed, error.row / (check.ROW_FACTOR * allowed)) if allowed else error.whole
        if share >= worst:
            worst = share
            wrong = share > 1 if allowed else error.whole > 0
            verdict = "wrong" if wrong else "right"
            limit = f" (allowed {allowed:.0e})" if allowed else ""
            said = f"check: {verdict}: result {number} in {dtype} is {error.whole:.2g} from the reference{limit}"
    return said or "check failed: neither the function nor the reference gives a tensor"


_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def copied(value: Any) -> Any:
    """A copy with its own tensors, so that the reference does not see what the function writes."""
    import torch  # noqa: PLC0415
    from torch.utils._pytree import tree_map  # noqa: PLC0415

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copy, value)
