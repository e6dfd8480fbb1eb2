"""Gradients of products, in Triton's interpreter."""

SCRIPTS = ["batch_product_gradients.py"]


def test_interpreted(wrong):
    assert not wrong, wrong
