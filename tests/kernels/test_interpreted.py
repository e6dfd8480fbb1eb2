"""Operators, norms and losses on the CPU: values, gradients, shapes, strides, special values."""

SCRIPTS = [
    "batch_interpreted.py",
    "batch_norms.py",
    "batch_operators.py",
    "batch_programs.py",
    "batch_losses.py",
    "batch_gluon.py",
]


def test_interpreted(wrong):
    assert not wrong, wrong
