"""Operators of ``DTensor``: the placements of arguments and outputs that fit together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

if TYPE_CHECKING:
    from tilescope_kernels._shared.operators import Operator


@functools.cache
def take_dtensors(operator: Operator) -> None:
    """Tell ``DTensor`` how the operator takes it, by its ``shards``. Without those it raises ValueError."""

    def placements(*args: Any) -> list[tuple[list[Any], list[Any]]]:
        if not operator.shards:
            raise ValueError(
                f"tilescope::{operator.name} takes no DTensor: call it with the local parts, x.to_local(), or in "
                "torch.distributed.tensor.experimental.local_map"
            )
        given, made = operator.shards.split()
        letters, arguments = iter(given), operator.overloads[0]._schema.arguments
        parts = [next(letters) if "Tensor" in str(argument.type) else "" for argument in arguments]
        # An optional tensor may be absent.
        present = [part if arg is not None else "" for part, arg in zip(parts, args, strict=False)]
        whole = dict.fromkeys("erwp", Replicate())
        dims = range(args[0].ndim) if "e" in given else (0,)
        split = ({**whole, "e": Shard(dim), "r": Shard(dim), "p": Partial()} for dim in dims)
        return [
            ([where[letter] for letter in made], [where[part] if part else None for part in present])
            for where in (whole, *split)
        ]

    register_sharding(operator.overloads)(placements)
