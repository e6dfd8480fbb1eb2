"""Tests that rest on a release of Triton."""

from importlib.metadata import version

import pytest

_HERE = tuple(map(int, version("triton").split(".")[:2]))
#: Whether Triton is without block pointers.
NEWEST = _HERE >= (3, 9)
#: Marks tests of kernels in Gluon, and of the choice of one.
GLUON = pytest.mark.skipif(NEWEST, reason="kernels in Gluon need Triton 3.8 or older")
#: Marks tests of the kernel for pairs of SMs, which writes PTX beside Triton's.
PAIRS_OF_SMS = pytest.mark.skipif(_HERE != (3, 6), reason="the kernel for pairs of SMs needs Triton 3.6")
