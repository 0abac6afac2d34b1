"""Records the values that a test compares while it runs.

Some functions that upstream's tests call are wrapped in the process that runs the tests; upstream's
files are not changed. A wrapper records arguments or results, and does not change what the function
does. Those that run a model for a reference or to calibrate run it on copies, so that the program
and all references start from what the test gave (see ci.upstream.given).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ci.graphs.torch_calls import name_operator
from ci.upstream.given import Given, copy_values, keep_buffers, protect

TESTS = "executorch.backends.qualcomm.tests"
Tensors = Sequence[torch.Tensor]


@dataclass(kw_only=True)
class Check:
    """A comparison in a test: upstream compares ``outputs`` with ``expected``."""

    program: Any  # the module that was lowered
    float_model: Any  # the module from which it was quantized, or None
    inputs: tuple[Any, ...]  # may be nested
    start_state: Given = field(default_factory=Given)  # the modules' buffers when the program ran
    is_own: bool  # whether ``expected`` are the outputs of ``program``, not of the float32 model
    pte_bytes: int = 0  # the size of the .pte, or 0 if it is not known
    outputs: Tensors = ()
    expected: Tensors = ()


@dataclass
class Capture:
    """The comparisons in the current test. ``checks`` holds the completed ones, and ``now`` the one
    whose program is running. ``sources`` maps the id of each quantized module to its float32 model
    and to the module itself."""

    checks: list[Check] = field(default_factory=list)
    now: Check | None = None
    sources: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def note_quantized(self, quantized: Any, float_model: Any) -> None:
        """Record that ``quantized`` was made from ``float_model``, and keep ``quantized`` alive so
        that its id stays unique."""
        self.sources[id(quantized)] = (float_model, quantized)

    def begin(
        self, program: Any, inputs: Tensors, *, is_own: bool = True, pte_bytes: int = 0
    ) -> None:
        """Record a program that is about to run, with a copy of its inputs."""
        source = self.sources.get(id(program))
        float_model = source[0] if source else None
        self.now = Check(
            program=program,
            float_model=float_model,
            # A copy, because modules such as an in-place leaky_relu change their inputs.
            inputs=tuple(copy_values(tuple(inputs))),
            start_state=Given((program, float_model)),
            is_own=is_own,
            pte_bytes=pte_bytes,
        )

    def compare(self, outputs: Tensors, expected: Tensors) -> None:
        """Record the outputs of the program that ran last, and the values with which upstream is
        about to compare them. Record nothing if no program ran since the last comparison."""
        if self.now:
            self.now.outputs, self.now.expected = tree_map(_detach, [[*outputs], [*expected]])
            self.checks.append(self.now)
            self.now = None


def _detach(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


capture = Capture()


def wrap(owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
    """Replace ``owner.name``, a function, with a wrapper. The wrapper calls ``before`` with its
    arguments, then the function, and then ``after`` with the result and the arguments."""
    inner = vars(owner)[name]

    @functools.wraps(inner)
    def call(*words: Any, **options: Any) -> Any:
        if before:
            before(*words, **options)
        result = inner(*words, **options)
        if after:
            after(result, *words, **options)
        return result

    setattr(owner, name, staticmethod(call) if isinstance(inner, staticmethod) else call)


def watch_delegate() -> None:
    """Record the comparisons of test_qnn_delegate.py. Its tests compare outputs with those of the
    module that was lowered."""
    case = importlib.import_module(f"{TESTS}.utils").TestQNN

    def begin(
        _: Any, module: Any, sample_inputs: Any, executorch_prog: Any, *_w: Any, **_o: Any
    ) -> None:
        capture.begin(module, sample_inputs, pte_bytes=len(executorch_prog.buffer))

    def quantized(result: Any, _: Any, module: Any, *_w: Any, **_o: Any) -> None:
        capture.note_quantized(result, module)

    protect(case, "get_qdq_module", inputs=("inputs",), module="module")
    # Not its modules: training changes their buffers, and this is what the test asks for.
    protect(case, "get_converted_sgd_trained_module", inputs=("inputs",))
    protect(case, "_save_model_and_expected_output", inputs=("inputs",), module="module")
    wrap(case, "verify_output", before=begin)
    wrap(
        case,
        "_assert_outputs_equal",
        before=lambda _, outputs, expected: capture.compare(outputs, expected),
    )
    wrap(case, "get_qdq_module", after=quantized)
    wrap(case, "get_converted_sgd_trained_module", after=quantized)


def watch_rework() -> None:
    """Record the comparisons of tests/rework. Its tests always compare outputs with those of the
    float32 model."""
    shared = importlib.import_module(f"{TESTS}.rework.conftest")
    lowered: dict[int, Any] = {}

    def calibrated(result: Any, calibrate: Any) -> None:
        lowered[id(calibrate.module)] = result
        if result is not calibrate.module:
            capture.note_quantized(result, calibrate.module)

    def begin(*, module: Any, inputs: Any, executorch_prog: Any, **_: Any) -> None:
        program = lowered.get(id(module), module)
        size = len(executorch_prog.buffer)
        capture.begin(program, inputs, is_own=program is module, pte_bytes=size)

    def close(_: Any, device_output: Any, ref_output: Any) -> None:
        capture.compare(device_output, ref_output)

    calibrate_on(shared.calibrate)
    protect(shared, "_get_expected_output", inputs=("inputs",), module="module")
    wrap(shared.calibrate, "__enter__", after=calibrated)
    wrap(shared, "verify_output_emulator", before=begin)
    for metric in shared.Metrics.__subclasses__():
        wrap(metric, "assert_close", before=close)


def calibrate_on(calibrate: Any) -> None:
    """Let upstream's context manager, whose ``__enter__`` quantizes its ``module``, calibrate on
    copies of its ``inputs``, and restore the module's buffers."""
    enter = calibrate.__enter__

    @functools.wraps(enter)
    def enter_with_copies(self: Any) -> Any:
        self.inputs = copy_values(self.inputs)
        with keep_buffers(self.module):
            return enter(self)

    calibrate.__enter__ = enter_with_copies


def watch_backend_suite() -> None:
    """Record the comparisons of backends/test/suite. Its tests compare outputs with those of the
    exported program."""
    tester = importlib.import_module("executorch.backends.test.harness.tester").Tester
    running: list[Any] = []

    def begin(program: Any, inputs: Any) -> None:
        module = program.module(check_guards=False)
        if any("quantize_" in name_operator(node) for node in module.graph.nodes):
            capture.note_quantized(module, running[-1].original_module)
        capture.begin(module, inputs)

    def compare(expected: Any, outputs: Any, *_w: Any, **_o: Any) -> None:
        capture.compare(tree_leaves(outputs), tree_leaves(expected))

    def run(test: Any, *_w: Any, **_o: Any) -> None:
        running[:] = [test]

    stages = importlib.import_module("executorch.backends.test.harness.stages")
    protect(stages.Quantize, "run", inputs=("inputs",), module="artifact")
    protect(tester, "_calculate_reference_output", inputs=("inputs",), module="program")
    wrap(tester, "run_method_and_compare_outputs", before=run)
    wrap(tester, "_calculate_reference_output", before=begin)
    wrap(tester, "_compare_outputs", before=compare)
