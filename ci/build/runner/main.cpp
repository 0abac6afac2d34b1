// Runs a .pte on every line of an input list; see flags.cpp for the flags and failure.h for
// the exit codes.
#include <executorch/runtime/platform/runtime.h>

#include <cstdio>
#include <exception>
#include <string>

#include "failure.h"
#include "files.h"
#include "flags.h"
#include "model.h"

namespace {

using qnn_ci::ExitCode;
using qnn_ci::Failure;
using qnn_ci::Flags;
using qnn_ci::Model;

void require_flags(const Flags& flags) {
  if (flags.model_path.empty() || flags.input_list_path.empty()) {
    throw Failure(ExitCode::kUsage, "--model_path and --input_list_path must be given");
  }
  if (flags.dump_intermediate_outputs && flags.debug_output_path.empty()) {
    throw Failure(ExitCode::kUsage, "--dump_intermediate_outputs needs --debug_output_path");
  }
  if (flags.input_shape_path.empty() != flags.output_shape_path.empty()) {
    throw Failure(ExitCode::kUsage, "--input_shape_path and --output_shape_path go together");
  }
}

void run(const Flags& flags) {
  require_flags(flags);
  const auto executions = qnn_ci::read_input_list(flags.input_list_path);
  qnn_ci::require_directory(flags.output_folder_path);
  Model model(flags);
  double total_ms = 0;
  for (size_t index = 0; index < executions.size(); ++index) {
    model.set_inputs(executions[index]);
    model.execute(flags.warm_up);
    total_ms += model.execute(flags.iteration);
    model.write_outputs(flags.output_folder_path, index);
  }
  model.write_traces(flags);
  const double average_ms = total_ms / static_cast<double>(executions.size()) / flags.iteration;
  std::fprintf(stderr, "%zu input sets, each run %d times: %.3f ms a run on average\n", executions.size(),
               flags.iteration, average_ms);
  if (!flags.performance_output_path.empty()) {
    const std::string text = std::to_string(average_ms);
    qnn_ci::write_file(flags.performance_output_path, text.data(), text.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  executorch::runtime::runtime_init();
  ExitCode code = ExitCode::kFine;
  try {
    const Flags flags = qnn_ci::parse_flags(argc, argv);
    if (flags.help) {
      std::fputs(qnn_ci::describe_flags().c_str(), stdout);
    } else {
      run(flags);
    }
  } catch (const Failure& failure) {
    std::fprintf(stderr, "qnn_wheel_runner: %s\n", failure.what());
    code = failure.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qnn_wheel_runner: %s\n", error.what());
    code = ExitCode::kFailed;
  }
  return static_cast<int>(code);
}
