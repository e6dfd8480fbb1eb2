"""Constructs of Triton's language are interpreted correctly: values as PyTorch's, bytes and operations by hand."""

import importlib.metadata

import pytest

from . import capturing
from .interpreting import constructs

TRITON = tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
MODULES = ("idioms", "constants", "reductions", "blocks", "memory")


def answer(name: str) -> dict:
    return capturing.constructs(*MODULES, "refused")[name]


@pytest.mark.parametrize("name", [name for module in MODULES for name in constructs(module)])
def test_construct_is_right(name: str) -> None:
    if name == "block_pointers" and TRITON >= (3, 9):
        assert "Block pointers have been removed" in answer(name)["error"]
        return
    assert (answer(name)["error"], answer(name)["problems"]) == (None, [])


REFUSED = {
    "an_unknown_method_of_the_builder": "the interpreter does not support novel of bf16: convert to float32 first",
    "inline_assembly": "the interpreter does not support inline assembly (cvt.rna.tf32.f32), whose result is needed",
    "an_unknown_function_of_libdevice": "the interpreter does not support __nv_tgammaf, whose result is needed",
    "the_number_of_warps": "Triton's interpreter has no num_warps",
    "several_elements_to_a_call": "map_elementwise is interpreted with one element to a call: leave pack out",
    **dict.fromkeys(
        ("meeting_by_loads", "meeting_by_exchange", "meeting_by_comparison"),
        "it waits for a value that no other program writes",
    ),
    "shared_memory_of_gluon": "allocate_shared_memory of Gluon is not interpreted: time it on a GPU",
}


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_construct_unsupported_is_named(name: str, said: str) -> None:
    error = answer(name)["error"]
    assert error.startswith("NotServed: ") and said in error and "\n" not in error


def test_construct_failing_assertion_is_the_kernels() -> None:
    error = answer("a_failing_static_assertion")["error"]
    assert error.startswith("InterpretationFailed: static_kernel, program (0, 0, 0), line ")
    assert error.endswith("AssertionError: N must be 3")


@pytest.mark.parametrize("name", ["inline_assembly", "an_unknown_function_of_libdevice"])
def test_construct_of_unknown_values_is_counted(name: str) -> None:
    counted = answer(name)["counted"]
    assert (counted["requested_read"], counted["requested_written"]) == (128, 128)
