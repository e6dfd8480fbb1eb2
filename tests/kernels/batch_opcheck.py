"""Every operator's description, in Triton's interpreter."""

# First: it switches the interpreter on.
from interpreted import main  # isort: skip

import torch
from operator_calls import operator_calls


def check_operators_are_described_as_they_behave():
    """Schema, shape functions, autograd registration, and what tracing makes of them."""
    for name, arguments in operator_calls("cpu").items():
        try:
            torch.library.opcheck(getattr(torch.ops.tilescope, name).default, arguments)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from None


if __name__ == "__main__":
    main(globals())
