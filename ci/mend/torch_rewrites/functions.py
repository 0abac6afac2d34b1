"""Functions that QNN does not take, as others that it does."""

from __future__ import annotations

from torch import fx

from ci.mend.torch_rewrites.editing import Editor, argument, aten, rewrites


# ExecuTorch decomposes them with a comparison, which stays on the CPU.
@rewrites("inline-functions", aten.celu.default, aten.softshrink.default)
def inline_functions(edit: Editor, node: fx.Node) -> None:
    """Write functions that QNN does not take by others that it does."""
    operand = node.args[0]
    if node.target is aten.softshrink.default:
        limit = argument(node, "lambd")
        new = edit.sub(operand, edit.clamp(operand, -limit, limit))
        edit.replace(node, new, "x - x.clamp(-lambd, lambd)")
    elif alpha := argument(node, "alpha"):
        scaled = operand if alpha == 1 else edit.mul(operand, 1 / alpha)
        new = edit.elu(scaled) if alpha == 1 else edit.mul(edit.elu(scaled), alpha)
        edit.replace(node, new, "F.elu(x / alpha) * alpha")
