"""Places for the captured operations that PyTorch leaves without one."""

import sys

from torch.fx import Node

from cerebras_pytorch.capture.stacks import place_of_frame
from cerebras_wafer.compiler.frontends.places import source_line
from cerebras_wafer.compiler.frontends.training_step import Program

_MODULE_STACKS = ("nn_module_stack", "fwd_nn_module_stack")


def complete_places(program: Program) -> None:
    """Give every operation a module path and a line of the user's.

    A sum of gradients, of a tensor that is used more than once, belongs to the module whose gradient it adds. An
    operation that only PyTorch's own code called (a criterion such as nn.CrossEntropyLoss) gets the user's line
    that led here: the call of `compile`.
    """
    place = place_of_frame(sys._getframe(1))
    for node in program.graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        if not any(node.meta.get(key) for key in _MODULE_STACKS):
            _take_module_of_an_input(node)
        if place is not None and source_line(node) is None:
            file, line = place
            node.meta["stack_trace"] = f'{node.stack_trace or ""}\n  File "{file}", line {line}, in compile\n'


def _take_module_of_an_input(node: Node) -> None:
    """The stack of the last input that has one: of a sum of gradients, the one that is added."""
    for source in reversed(node.all_input_nodes):
        for key in _MODULE_STACKS:
            if source.meta.get(key):
                node.meta[key] = source.meta[key]
                return
