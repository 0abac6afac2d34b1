"""What ExecuTorch offers beside a scheme: how a model's entry says it, and how it is done."""
