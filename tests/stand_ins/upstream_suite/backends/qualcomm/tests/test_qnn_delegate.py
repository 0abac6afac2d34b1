"""A small suite with the shape of upstream's: what it compares was made by no program."""

from __future__ import annotations

import os
import subprocess
import time

import torch
import torchvision
from executorch.backends.qualcomm.tests.utils import TestQNN


class Program:
    """Stands for a lowered program."""

    buffer = b"1234"


def verify_nothing(self, module, sample_inputs, executorch_prog) -> None:
    """Run no program."""


TestQNN.verify_output = verify_nothing


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
