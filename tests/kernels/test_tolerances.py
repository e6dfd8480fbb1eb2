"""What error each kernel accepts, against the errors that the recordings measured of results that were right."""

import functools
import re

import pandas as pd
import pytest
import torch
from tilescope.runs import store
from tilescope_kernels import CATALOG

SPECS = {spec.name: spec for spec in CATALOG}
#: An accepted error is at most so many times the largest that was measured.
_MOST = 4.0
#: An error in fp32 that any order of summation may have: a right kernel of somebody else's, held to the same reference, is not
#: called wrong for a few units in the last place.
_ROUNDING = 1e-5
#: Kernels of one tolerance, because one function makes their specs or they round alike: the largest error of any counts for all.
_FAMILIES = {
    "int8_rows": "int8_codes", "int8_tensor": "int8_codes",
    "fp8_rows": "fp8_codes", "fp8_tensor": "fp8_codes", "fp8_blocks": "fp8_codes", "fp8_tiles": "fp8_codes",
    "depthwise_conv2d": "conv2d",
    "ragged_attention": "causal_attention", "paged_attention": "attention",
}  # fmt: skip


def _neighbour(largest, step):
    """The error of a small tensor's codes of which one, at a tie, is the next: right, and rare where ties are."""
    x = torch.randn(60, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return float(step / (x * largest / x.abs().max()).norm())


@functools.cache
def measured():
    """The largest error of a right result by family and dtype, of any implementation on a GPU."""
    tables = []
    for path in store.recorded_dir().glob("*/table.parquet"):
        # Not opened as a run, of which most is read for nothing here.
        table = pd.read_parquet(path, filters=[("source", "==", "check")])
        found = table[table["metric"].isin(["relative_error", "tolerance"])]
        columns = ["kernel", "impl", "pass", "workload", "config"]
        tables.append(found.pivot_table(index=columns, columns="metric", values="value").reset_index())
    rows = pd.concat(tables)
    rows = rows[rows["relative_error"] <= rows["tolerance"]]
    dtypes = rows["workload"].map(lambda name: re.search(r"-([a-z0-9]+?)(-s\d+)?$", name)[1])
    families = rows["kernel"].map(lambda name: _FAMILIES.get(name, name))
    found = rows.groupby([families, dtypes])["relative_error"].max().to_dict()
    for family, error in (("int8_codes", _neighbour(127, 1)), ("fp8_codes", _neighbour(448, 32))):
        found[family, "fp32"] = max(found[family, "fp32"], error)
    return found


@pytest.mark.parametrize("name", SPECS)
def test_tolerance_is_at_most_four_times_the_measured_error(name):
    known, tolerance = measured(), SPECS[name].tolerance
    family = _FAMILIES.get(name, name)
    checked = [dtype for dtype in tolerance if (family, dtype) in known]
    assert checked, "no recording has this kernel"
    for dtype in checked:
        error = known[family, dtype]
        most = max(_MOST * error, _ROUNDING if dtype == "fp32" else 0.0)
        assert error <= tolerance[dtype] <= most, (dtype, error, tolerance[dtype])
