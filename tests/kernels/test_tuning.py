"""What an autotuner may choose from, for operands that descriptors reach and for those that they do not."""

import pytest
from tilescope_kernels.matrix_products import lora, matmul
from tilescope_kernels.matrix_products.scaled_matmul import scaled_matmul_tuned

TUNERS = {
    "matmul": matmul.matmul_tuned,
    "scaled_matmul": scaled_matmul_tuned,
    "lora_linear": lora.lora_linear_tuned,
}


@pytest.mark.parametrize("name", TUNERS)
def test_tuner_without_descriptors_has_no_tma_config(name):
    pointers, every = TUNERS[name]
    assert {config.kwargs["TMA"] for config in every.configs} == {0, 1}
    assert {config.kwargs["TMA"] for config in pointers.configs} == {0}
    # Each remembers its own choices.
    assert pointers.cache is not every.cache
    assert {str(config) for config in pointers.configs} < {str(config) for config in every.configs}
