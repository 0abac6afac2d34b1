// Runs a .pte on every line of an input list; see flags.h for the flags and failure.h for
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
  if (!flags.has("model_path") || !flags.has("input_list_path")) {
    throw Failure(ExitCode::kUsage, "--model_path and --input_list_path are required");
  }
  if (flags.has("dump_intermediate_outputs") && !flags.has("debug_output_path")) {
    throw Failure(ExitCode::kUsage, "--dump_intermediate_outputs needs --debug_output_path");
  }
  if (flags.has("input_shape_path") != flags.has("output_shape_path")) {
    throw Failure(ExitCode::kUsage, "--input_shape_path and --output_shape_path must be used together");
  }
}

void run(const Flags& flags) {
  require_flags(flags);
  const auto executions = qnn_ci::read_input_list(flags.text("input_list_path"));
  const std::string& directory = flags.text("output_folder_path");
  qnn_ci::require_directory(directory);
  Model model(flags);
  const int times = flags.number("iteration");
  double total_ms = 0;
  for (size_t index = 0; index < executions.size(); ++index) {
    model.set_inputs(executions[index]);
    model.execute(flags.number("warm_up"));
    total_ms += model.execute(times);
    model.write_outputs(directory, index);
  }
  model.write_traces(flags);
  const double average_ms = total_ms / static_cast<double>(executions.size()) / times;
  std::fprintf(stderr, "%zu samples, each run %d times: %.3f ms per run on average\n",
               executions.size(), times, average_ms);
  if (flags.has("performance_output_path")) {
    const std::string text = std::to_string(average_ms);
    qnn_ci::write_file(flags.text("performance_output_path"), text.data(), text.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  executorch::runtime::runtime_init();
  ExitCode code = ExitCode::kFine;
  try {
    const Flags flags(argc, argv);
    if (flags.has("help")) {
      std::fputs(qnn_ci::describe_flags().c_str(), stdout);
    } else {
      run(flags);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qnn_wheel_runner: %s\n", error.what());
    const auto* failure = dynamic_cast<const Failure*>(&error);
    code = failure != nullptr ? failure->code() : ExitCode::kFailed;
  }
  return static_cast<int>(code);
}
