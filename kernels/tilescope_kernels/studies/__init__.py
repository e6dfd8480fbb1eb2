"""Kernels that exist to be compared: each spec holds one question, and its implementations are the answers.

They are measured like any kernel, but are of no use beyond that, so the package does not export their functions.
"""

from tilescope_kernels.studies.block_reduction import SPEC as BLOCK_REDUCTION
from tilescope_kernels.studies.compile_modes import MODES, REGIONS
from tilescope_kernels.studies.strided_copy import SPEC as STRIDED_COPY
from tilescope_kernels.studies.tma_copy import SPEC as TMA_COPY

SPECS = (TMA_COPY, STRIDED_COPY, BLOCK_REDUCTION, MODES, REGIONS)

__all__ = ["BLOCK_REDUCTION", "MODES", "REGIONS", "SPECS", "STRIDED_COPY", "TMA_COPY"]
