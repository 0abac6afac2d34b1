"""A digest of what a model calls, which is much cheaper than that of its exported graph.

torch.export needs 1.5 s of imports and then 10 to 30 times as long as a forward pass. A run whose
programs are all cached needs it for nothing else than to see that nothing has changed.

torch.export follows the same Python code. Its graph depends on the functions of torch that this
code calls, on their arguments, and on the lines of the calls. All of these are recorded while the
model runs once. Some models can't be followed in this way, for example one that calls a function of
TorchScript; they are exported.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ci.models.eager import copy_inputs, force_eager, keep_state, list_tensors
from ci.models.factory import Inputs
from ci.models.source_lines import name_file

TORCH = str(Path(torch.__file__).parent)
# A model may take another path while it is exported, and that is the path to follow.
EXPORTING = ("_is_compiling_flag", "_is_exporting_flag")
PLAIN = (
    *(type(None), type(...), bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class CallRecorder(TorchFunctionMode):
    """Adds each call of a function of torch to a digest.

    Tensors are numbered in the order in which they appear. ``named`` has the tensors of the module
    and the inputs, by name. An argument that is neither one of them nor the result of an earlier
    call comes from code that this mode does not see: ``is_complete`` is then false. This is no
    exception, because the model's own code might catch it.
    """

    def __init__(self, digest: Any, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.digest = digest
        self.names = WeakIdKeyDictionary()
        self.count = 0
        self.is_complete = True
        for name, tensor in named.items():
            self.names.setdefault(tensor, name)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Record one call and run it."""
        del types
        kwargs = kwargs or {}
        called = f"{self.name_function(func)} {self.describe(args)} {self.describe(kwargs)}"
        result = func(*args, **kwargs)
        self.add(f"{called} {list_lines()} -> {self.describe(result, is_result=True)}")
        return result

    def add(self, text: str) -> None:
        """Add a text to the digest."""
        self.digest.update(f"{len(text)}:{text}".encode())

    def describe(self, value: Any, *, is_result: bool = False) -> str:
        """Return a text for an argument or a result."""
        if isinstance(value, Tensor):
            return self._name_tensor(value, is_result=is_result)
        if isinstance(value, Mapping):
            texts = [
                f"{key!r}: {self.describe(item, is_result=is_result)}"
                for key, item in value.items()
            ]
            return f"{type(value).__name__} {texts}"
        if isinstance(value, list | tuple):
            texts = [self.describe(item, is_result=is_result) for item in value]
            return f"{type(value).__name__} {texts}"
        if isinstance(value, slice):
            return f"slice{self.describe((value.start, value.stop, value.step))}"
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        if is_result:  # such as a method that getattr found
            return type(value).__qualname__
        self.is_complete = False
        return type(value).__qualname__

    def name_function(self, func: Any) -> str:
        """Return a name for a function of torch, such as ``Tensor.shape.__get__``."""
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return str(func)
        owner = getattr(func, "__self__", None)
        owner_name = getattr(owner, "__qualname__", "") or getattr(owner, "__name__", "")
        name = getattr(func, "__qualname__", "") or getattr(func, "__name__", "")
        self.is_complete = self.is_complete and bool(name)
        return f"{getattr(func, '__module__', '')} {owner_name} {name}"

    def _name_tensor(self, tensor: Tensor, *, is_result: bool) -> str:
        name = self.names.get(tensor)
        if name is None:
            self.is_complete = self.is_complete and is_result
            self.count += 1
            name = self.names[tensor] = f"%{self.count}"
        return f"{name}:{tensor.dtype}{tuple(tensor.shape)}"


def digest_calls(
    module: nn.Module, inputs: Inputs, digest_tensor: Callable[..., None]
) -> str | None:
    """Return the SHA-256 of the calls of a module and of its state. ``digest_tensor(digest,
    tensor)`` adds the elements of a tensor. The result is None if the calls do not tell everything
    that an exported graph depends on, or if the module raises an error."""
    digest = hashlib.sha256(b"calls")
    inputs = copy_inputs(inputs)
    constants = dict(list_constants(module))
    ports = {f"input {index}": tensor for index, tensor in enumerate(list_tensors(inputs))}
    recorder = CallRecorder(digest, constants | ports)
    for name, part in module.named_modules(remove_duplicate=False):
        recorder.add(f"{name} {type(part).__module__}.{type(part).__qualname__}")
        recorder.add(f"{[*part._parameters]} {[*part._buffers]} {part.training}")
        recorder.add(f"{sorted(part._non_persistent_buffers_set)}")
    for name, tensor in constants.items():
        recorder.add(f"{name} is {recorder.names[tensor]}")  # two names may share one tensor
        digest_tensor(digest, tensor)
    try:
        with torch.no_grad(), keep_state(module), force_eager(), exporting(), recorder:
            outputs = module(*inputs)
        recorder.add(recorder.describe(outputs))
    except Exception:  # noqa: BLE001 - torch.export decides, and the lowering reports the error
        return None
    return digest.hexdigest() if recorder.is_complete else None


@contextmanager
def exporting() -> Iterator[None]:
    """Let torch.compiler.is_exporting() be true in the block, as in torch.export."""
    values = vars(torch.compiler)
    before = {name: values[name] for name in EXPORTING if name in values}
    try:
        values.update(dict.fromkeys(before, True))
        yield
    finally:
        values.update(before)


def list_constants(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters, buffers and other tensors of a module, and those that are global in the
    files of its classes, with a name for each."""
    for name, part in module.named_modules(remove_duplicate=False):
        attributes = {**vars(part), **part._parameters, **part._buffers}
        yield from _list_values(f"{name}.", attributes)
        forward = getattr(type(part).forward, "__globals__", {})
        if not type(part).__module__.startswith("torch."):
            yield from _list_values(f"{type(part).__module__}:", forward, nested=False)


def _list_values(
    prefix: str, values: Mapping[str, Any], *, nested: bool = True
) -> Iterator[tuple[str, Tensor]]:
    for key, value in values.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif nested and isinstance(value, list | tuple):
            yield from _list_values(f"{prefix}{key}.", dict(enumerate(value)))  # type: ignore[arg-type]
        elif nested and isinstance(value, dict) and not key.startswith("_"):
            yield from _list_values(f"{prefix}{key}.", value)


def list_lines() -> str:
    """Return the lines of the call in files that are not torch's, innermost first, up to
    digest_calls."""
    frame: FrameType | None = sys._getframe(2)  # the caller of __torch_function__
    lines = []
    while frame is not None and frame.f_code is not digest_calls.__code__:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, "<")):
            lines.append(f"{name_file(Path(file))}:{frame.f_lineno}")
        frame = frame.f_back
    return " ".join(lines)
