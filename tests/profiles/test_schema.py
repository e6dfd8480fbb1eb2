"""The table and the run's description are validated, and errors name what is wrong."""

import pytest
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Failure, Run, SchemaError

CASE = Case("softmax", "triton", "forward", "1823x781-fp32")


def table():
    return schema.frame(
        [
            CASE.row("registers", 32, "compiler", launch=0, function="k"),
            CASE.row("registers", 40, "ncu", launch=0, function="k"),
            *(
                CASE.row("gpu_time", t, "torch_profiler", launch=0, function="k", sample=i)
                for i, t in enumerate((1, 3, 2))
            ),
        ]
    )


def run():
    device = Device("H", "sm_90", 132, 1, 2, True, (Ceiling("hbm", 4.27e12, "byte/second", "measured", "copy"),))
    return Run(
        "id", "2026", device, {"k": {"file": "f"}}, {"torch": "2"}, {"warmup": 1}, failures=(Failure("c", "ncu", "m"),)
    )


def test_a_row_gets_its_unit_and_what_it_lacks_is_absent():
    found = table()
    assert list(found.columns) == list(schema.COLUMNS)
    assert set(found["unit"]) == {"count", "second"}
    assert found["sample"].isna().tolist() == [True, True, False, False, False]
    assert schema.validate(found) is found


def test_schema_refuses_what_it_does_not_know():
    with pytest.raises(SchemaError, match="unknown metric 'speed'"):
        schema.frame([CASE.row("speed", 1, "model")])
    with pytest.raises(SchemaError, match=r"missing \['launch'\]"):
        schema.validate(table().drop(columns="launch"))
    with pytest.raises(SchemaError, match=r"unexpected \['colour'\]"):
        schema.validate(table().assign(colour=1))


@pytest.mark.parametrize(("change", "said"), [
    ({"source": "guess"}, "unknown source 'guess'"),
    ({"metric": "speed"}, "unknown metric 'speed'"),
    ({"unit": "ms"}, "registers is not in count"),
    ({"value": float("nan")}, "must be finite"),
    ({"value": float("-inf")}, "must be finite"),
])  # fmt: skip
def test_a_wrong_value_is_named(change, said):
    with pytest.raises(SchemaError, match=said):
        schema.validate(table().assign(**change))


def test_values_of_another_dtype_are_read_as_numbers():
    """A collector of a user's own may give objects."""
    found = table().assign(value=table()["value"].astype(object))
    assert schema.validate(found) is found
    found.loc[1, "value"] = None
    with pytest.raises(SchemaError, match="row 1: a value must be finite"):
        schema.validate(found)


def test_a_run_survives_json():
    assert Run.from_json(run().to_json()) == run()
    assert Run.from_json({**run().to_json(), "added_later": 1}) == run()
    device = run().device
    assert device.ceiling("hbm", "measured").value == 4.27e12
    assert device.ceiling("hbm", "datasheet") is None
    assert schema.validate(schema.frame([])).dtypes.astype(str).to_dict() == schema.COLUMNS
