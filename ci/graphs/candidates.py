"""What the parts of a mixture can select in a model. The readers of graphs describe each node so
(torch_candidates, onnx_file), and ci.analysis.mixtures chooses among the descriptions."""

from __future__ import annotations

from msgspec import Struct


class Candidate(Struct, frozen=True):
    """A node, with the values to which each selector of Part is compared. A compiler may rewrite an
    operator, so a node may have several names."""

    node: tuple[str, ...]  # the current name first
    op: tuple[str, ...]
    module: tuple[str, ...] = ()  # the paths of the modules that call it, the outermost first
    type: tuple[str, ...] = ()  # their classes
    line: tuple[str, ...] = ()  # empty if it is unknown
    tensor: tuple[str, ...] = ()
    result_type: str = ""  # the type of its result, in a file that is already quantized

    @property
    def name(self) -> str:
        """Return the current name of the node."""
        return self.node[0]
