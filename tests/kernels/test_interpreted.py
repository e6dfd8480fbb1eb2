"""Every kernel in Triton's interpreter: values, gradients, shapes, strides, special values."""

SCRIPTS = ["batch_interpreted.py", "batch_norms.py", "batch_operators.py", "batch_opcheck.py", "batch_losses.py"]


def test_interpreted(wrong):
    assert not wrong, wrong
