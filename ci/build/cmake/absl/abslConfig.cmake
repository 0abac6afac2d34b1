# Stands in for Abseil where only qnn_executor_runner is built: ExecuTorch's examples/qualcomm asks
# for it on behalf of its other runners. A target that links with absl:: fails at once.
set(absl_FOUND TRUE)
