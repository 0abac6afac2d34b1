"""ExecuTorch's QNN test suites, run test by test on the emulator and judged twice: by themselves,
and by our gate from the same inputs and outputs.
"""
