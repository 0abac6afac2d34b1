"""The ExecuTorch engine: quantizes models, lowers them to QNN programs, and runs the programs."""

# What the processes that lower and run programs have imported before they start.
IMPORTS = ("ci.executorch.runtime", "ci.models.model")
