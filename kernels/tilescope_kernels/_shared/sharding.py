"""How operators take ``DTensor``. Imported once it is used."""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding


@functools.cache
def register(operator: Any) -> None:
    """Tell ``DTensor`` how an operator takes it."""
    register_sharding(operator.overloads)(functools.partial(_placements, operator))


def _placements(operator: Any, *args: Any) -> list[tuple[list[Any], list[Any]]]:
    """The placements of outputs and of arguments that fit together."""
    if not operator.shards:
        raise ValueError(
            f"tilescope::{operator.name} takes no DTensor: call it with the local parts, x.to_local(), or in "
            "torch.distributed.tensor.experimental.local_map"
        )
    given, made = operator.shards.split()
    letters = iter(given)
    parts = [
        next(letters) if "Tensor" in str(argument.type) else "" for argument in operator.overloads[0]._schema.arguments
    ]

    def placed(where: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        # An optional tensor may be absent.
        pairs = zip(parts, args, strict=False)
        places = [where[part] if part and arg is not None else None for part, arg in pairs]
        return [where[letter] for letter in made], places

    whole = dict.fromkeys("erwp", Replicate())
    dims = range(args[0].ndim) if "e" in given else (0,)
    return [placed(whole), *(placed({"e": Shard(d), "r": Shard(d), "w": Replicate(), "p": Partial()}) for d in dims)]
