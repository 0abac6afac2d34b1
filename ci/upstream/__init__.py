"""Runs ExecuTorch's QNN test suites test by test on the emulator. Each test gets two verdicts: its
own, and the verdict of this project's gate on the same inputs and outputs."""
