"""The modules that the cases of a runtime import, and the extra of this project that installs them.
``test`` reads them without numpy, which the runtimes' own packages import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuntimeModules:
    """The modules that a runtime needs for its own files, and ``converting``, those that it needs
    as well for models that are Python functions. ``extra`` installs all of them, and
    ``file_extra`` the first ones."""

    for_files: tuple[str, ...]
    converting: tuple[str, ...]
    extra: str
    file_extra: str

    def choose(self, *, has_functions: bool) -> tuple[tuple[str, ...], str]:
        """Return the modules for models of which some or none are functions, and the extra that
        installs them."""
        if has_functions:
            return (*self.for_files, *self.converting), self.extra
        return self.for_files, self.file_extra


EXECUTORCH = RuntimeModules(("torch", "executorch"), (), "lowering", "lowering")
ONNX = RuntimeModules(
    ("onnx", "onnxruntime", "onnxruntime_qnn"), ("torch", "onnxscript"), "onnx-torch", "onnx"
)
LITERT = RuntimeModules(
    ("ai_edge_litert", "flatbuffers", *ONNX.for_files),
    ("torch", "litert_torch", "litert_converter", "jax"),
    "litert-torch",
    "litert",
)
