"""Gradients of products, in Triton's interpreter."""

SCRIPTS = {
    "batch_product_gradients.py": {"check_matmul", "check_lora_linear", "check_lora_linear_twice", "check_conv2d"}
}


def test_interpreted(wrong):
    assert not wrong, wrong
