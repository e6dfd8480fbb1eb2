"""Kernels in Gluon that keep rows on chip, run on the CPU: what is read has come, what is written is right."""

SCRIPTS = ["batch_gluon.py"]


def test_on_the_cpu(wrong):
    assert not wrong, wrong
