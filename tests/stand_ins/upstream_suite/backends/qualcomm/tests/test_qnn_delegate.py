"""A small suite with the shape of upstream's: what it compares was made by no program."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import time
import warnings

import torch
import torchvision
from executorch.backends.qualcomm.tests.utils import TestQNN
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
)


class Program:
    """Stands for a lowered program."""

    buffer = b"1234"


verify_program = TestQNN.verify_output


def verify_output(self, module, sample_inputs, executorch_prog, **options) -> None:
    """Run no program, except one that was lowered."""
    if executorch_prog is not Program:
        verify_program(self, module, sample_inputs, executorch_prog, **options)


TestQNN.verify_output = verify_output


class WritesToInput(torch.nn.Module):
    """Changes its input, as a leaky_relu in place does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.leaky_relu_(x, 0.05)


class WritesToBuffer(torch.nn.Module):
    """Starts from another state in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return torch.sin(3 * self.total)


class DrawsNumbers(torch.nn.Module):
    """Returns something else in each call, as dropout does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + torch.rand_like(x))


class TestSuite(TestQNN):
    """Each test ends in another way."""

    def setUp(self) -> None:
        TestQNN.atol, TestQNN.rtol = 0.1, 1.0  # upstream's own, for what is quantized

    @classmethod
    def setUpClass(cls) -> None:
        """Have no phone."""

    def compare(self, module: torch.nn.Module, change) -> None:
        inputs = (torch.randn(2, 8),)
        expected = [module(*inputs).detach()]
        self.verify_output(module, inputs, Program)
        self._assert_outputs_equal([change(expected[0])], expected)

    def test_right(self) -> None:
        self.compare(
            torch.nn.Linear(8, 4), lambda output: output + 1e-5 * torch.randn(output.shape)
        )

    def test_zeros(self) -> None:
        self.compare(torch.nn.Tanh(), lambda output: output * 0)

    def test_too_far(self) -> None:
        self.compare(torch.nn.Tanh(), lambda output: output * 9)

    def test_dies(self) -> None:
        os.abort()

    def test_hangs(self) -> None:
        time.sleep(600)

    def test_needs_package(self) -> None:
        torchvision.models.mobilenet_v2(weights="DEFAULT")

    def test_skipped(self) -> None:
        self.skipTest("no phone here")

    def test_draws(self) -> None:
        """Give other outputs each time, whatever the seed."""
        off = int.from_bytes(os.urandom(1), "little") % 2
        self.compare(torch.nn.Linear(8, 4), lambda output: output * (1 - 0.5 * off))

    def test_runner(self) -> None:
        """Start the runner as upstream does, with a program that there is not."""
        words = ("--model_path", "no.pte", "--input_list_path", "no", "--output_folder_path", ".")
        runner = os.environ["QNN_EXECUTOR_RUNNER"]
        done = subprocess.run([runner, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "no.pte" in done.stdout
        unknown = [runner, *words, "--etdump_path", "x"]
        done = subprocess.run(unknown, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout

    def test_noisy(self) -> None:
        """Print as packages do: from Python and from C, to both streams, and in other processes."""
        for stream in (sys.stdout, sys.stderr):
            print("NOISE of Python", file=stream)
        logging.getLogger("noisy").warning("NOISE of a logger")
        warnings.warn("NOISE of a warning", stacklevel=1)
        for descriptor in (1, 2):
            os.write(descriptor, b"NOISE of C\n")
        subprocess.run(["sh", "-c", "echo NOISE of a child; echo NOISE of a child >&2"], check=True)
        self.test_right()


class TestGiven(TestQNN):
    """Tests whose models would give other values to the references than to the program."""

    @classmethod
    def setUpClass(cls) -> None:
        """Have no phone."""

    def setUp(self) -> None:
        TestQNN.atol, TestQNN.rtol = 0.1, 1.0
        TestQNN.backend, TestQNN.soc_model, TestQNN.enable_x86_64 = "htp", "SM8650", True
        TestQNN.compiler_specs = generate_qnn_executorch_compiler_spec(
            soc_model=self.chipset_table["SM8650"],
            backend_options=generate_htp_compiler_spec(use_fp16=True),
        )

    def compare_quantized(self, module: torch.nn.Module, inputs) -> None:
        """Quantize a module, and compare it with its copy, which stands for the program."""
        quantized = self.get_qdq_module(module, inputs)
        program = copy.deepcopy(quantized)
        self.verify_output(quantized, inputs, Program)
        generator = torch.get_rng_state()
        expected, _ = self._save_model_and_expected_output(quantized, b"", inputs, ".")
        torch.set_rng_state(generator)
        self._assert_outputs_equal([program(*inputs)], expected)

    def test_given_input(self) -> None:
        """Write to the tensor that is then the program's input. This model is lowered and run."""
        inputs = (torch.randn(2, 5, 1, 3),)
        self.lower_module_and_test_output(WritesToInput(), inputs)

    def test_given_buffer(self) -> None:
        self.compare_quantized(WritesToBuffer(), (torch.randn(2, 64),))

    def test_given_random_state(self) -> None:
        self.compare_quantized(DrawsNumbers(), (torch.randn(2, 64),))
