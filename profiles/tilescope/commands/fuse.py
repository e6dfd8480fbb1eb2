"""``tilescope fuse``: predicts the speedup from fusing a chain of operations, before there is a kernel."""

from __future__ import annotations

import argparse
import dataclasses
import json

from tilescope.models import fusion, terminal
from tilescope.notebook import fusion_trace


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "chain", metavar="CHAIN", help="operations in their order, as in add,relu,mul, or a function: file.py:name"
    )
    parser.add_argument("shape", metavar="SHAPE", help="sizes and dtype, as in 16384x4096-bf16")
    parser.add_argument("--target", default="sm_90", metavar="sm_90", help="the GPU's architecture (sm_90)")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the prediction. Raises ValueError, with the accepted values, for an unknown chain, shape or target."""
    problem = fusion.parse_problem(arguments.shape)
    if ".py:" in arguments.chain:
        chain = fusion_trace.trace(arguments.chain, arguments.shape)
    else:
        chain = fusion.count(fusion.parse_chain(arguments.chain), problem)
    answer = fusion.ask(chain, problem, arguments.target)
    if arguments.json:
        print(json.dumps({**dataclasses.asdict(answer), "bound": answer.bound}))
        return 0
    rows = [[line.topic, "" if line.good is None else "+" if line.good else "-", line.text] for line in answer.lines]
    print(terminal.render(["predicted", "", ",".join(answer.chain.names)], rows))
    return 0
