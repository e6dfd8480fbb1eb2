"""Looking on at PyTorch's operators. Imports torch."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OnLooker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import PyTorch's compiler where nobody else has.

    PyTorch hides each mode from its compiler, which it imports for that at the first operator: 1.3 seconds of a CPU. Where it is not
    imported there is nothing to hide from.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        own: Any = cls.__dict__.get("__torch_dispatch__")
        super().__init_subclass__(**more)  # type: ignore[no-untyped-call]
        if own is None:
            return
        hidden: Any = cls.__torch_dispatch__

        def dispatch(mode: Any, *args: Any, **kwargs: Any) -> Any:
            # While it is being imported it cannot hide anything either.
            if not hasattr(sys.modules.get("torch._dynamo"), "disable"):
                return own(mode, *args, **kwargs)
            cls.__torch_dispatch__ = hidden  # type: ignore[method-assign]
            return hidden(mode, *args, **kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign, assignment]
