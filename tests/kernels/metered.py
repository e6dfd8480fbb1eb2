"""Launches in tilescope's interpreter, which knows e4m3 and bf16 and refuses accesses outside, and what they move."""

from checks import SPECS
from tilescope.execution import launches
from tilescope.interpreter import interpret
from tilescope.interpreter.meter import Meter
from tilescope_kernels.spec import FORWARD


def run(launch):
    meter = interpret.meter(launch)
    interpret.run(launch, meter=meter)
    return meter


def moved(name, workload, **options):
    """Bytes that are read and written, each once a launch."""
    spec, meters = SPECS[name], list[Meter]()
    inputs = spec.inputs(spec.workload(workload), "cpu")
    with launches.catch(lambda launch: meters.append(run(launch))):
        spec.implementations["triton"].call(**inputs, **options)
    return sum(meter.read.bytes for meter in meters), sum(meter.written.bytes for meter in meters)


def moves_its_floor(name, workload, **options):
    """Each byte of the cost model is touched, and no other."""
    floor, found = SPECS[name].cost(SPECS[name].workload(workload), FORWARD), moved(name, workload, **options)
    assert found == (floor.bytes_read, floor.bytes_written), f"{name} {workload}: {found}, {floor}"
