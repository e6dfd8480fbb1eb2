"""Products, convolutions and quantization on the CPU: values, gradients, shapes, strides, special values."""

SCRIPTS = [
    "batch_product_gradients.py",
    "batch_conv2d.py",
    "batch_grouped_conv2d.py",
    "batch_norm_linear.py",
    "batch_matmul_split.py",
    "batch_quantized.py",
    "batch_scaled_products.py",
]


def test_interpreted(wrong):
    assert not wrong, wrong
