"""ExecuTorch's own QNN test suites, run test by test on the emulator and judged twice: by them, and
by our gate from the same inputs and outputs.
"""
