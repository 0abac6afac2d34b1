"""Runs ExecuTorch's QNN test suites test by test on the emulator. Each test has two verdicts: its
own, and that of this project's gate for the same inputs and outputs.
"""
