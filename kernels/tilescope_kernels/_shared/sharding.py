"""How operators take ``DTensor``: elementwise ones sharded along any dimension, those of rows along the rows. Imported once it is used."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

#: Operators by the parts of their tensors, in the order of the schema, and of their outputs: ``e`` is sharded along any dimension,
#: ``r`` along the first, ``w`` is whole on every rank, and ``p`` is a sum of which every rank has a part.
_PARTS = {
    "vector_add": "ee e",
    "add_relu_mul": "ee e",
    "gelu": "e e",
    "gelu_backward": "ee e",
    "gated": "ee e",
    "gated_backward": "eee ee",
    "softmax": "r r",
    "softmax_backward": "rr r",
    "row_sum": "r r",
    "online_max": "r rr",
    "layer_norm": "rww rr",
    "layer_norm_backward": "rrwr rp",
    "rms_norm": "rw rr",
    "rms_norm_backward": "rrrwr rp",
    "add_rms_norm": "rrw rrr",
    "group_norm": "rww rr",
    "group_norm_backward": "rrwr rp",
}


@functools.cache
def register(name: str) -> None:
    """Tell ``DTensor`` how the operator ``name`` takes it."""
    operator = getattr(torch.ops.tilescope, name)
    register_sharding([operator.plain, operator.default])(functools.partial(_placements, name))


def _placements(name: str, *args: Any) -> list[tuple[list[Any], list[Any]]]:
    """The placements of outputs and of arguments that fit together."""
    if name not in _PARTS:
        raise ValueError(
            f"tilescope::{name} takes no DTensor: call it with the local parts, x.to_local(), or in "
            "torch.distributed.tensor.experimental.local_map"
        )
    given, made = _PARTS[name].split()
    described = [str(argument.type) for argument in getattr(torch.ops.tilescope, name).plain._schema.arguments]
    letters = iter(given)
    parts = [next(letters) if "Tensor" in kind else "" for kind in described]

    def placed(where: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        # An optional tensor may be absent.
        pairs = zip(parts, args, strict=False)
        places = [where[part] if part and arg is not None else None for part, arg in pairs]
        return [where[letter] for letter in made], places

    whole = dict.fromkeys("erwp", Replicate())
    dims = range(args[0].ndim) if "e" in given else (0,)
    return [placed(whole), *(placed({"e": Shard(d), "r": Shard(d), "w": Replicate(), "p": Partial()}) for d in dims)]
