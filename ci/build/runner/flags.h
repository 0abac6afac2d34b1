// The command line, with the names that ExecuTorch's qnn_executor_runner gives its flags.
#pragma once

#include <optional>
#include <string>

namespace qnn_ci {

struct Flags {
  std::string model_path;
  std::string input_list_path;
  std::string output_folder_path = "outputs";
  std::string input_shape_path;
  std::string output_shape_path;
  std::string etdump_path;
  std::string debug_output_path;
  std::string performance_output_path;
  int iteration = 1;
  int warm_up = 0;
  int method_index = 0;
  int debug_buffer_size = 100000000;  // bytes
  bool shared_buffer = false;
  bool dump_intermediate_outputs = false;
  bool help = false;

  // Runtime options of the QNN backend: each overrides what the .pte was lowered with.
  std::optional<int> log_level;
  std::optional<int> htp_performance_mode;
  std::optional<int> profile_level;
  std::optional<int> lpai_fps;
  std::optional<int> lpai_ftrt_ratio;
  std::optional<int> lpai_client_perf_type;
  std::optional<int> lpai_affinity;
  std::optional<int> lpai_core_selection;
  std::string heap_profiling_path;
};

// Reads --name=value, --name value, --switch and --noswitch, with one dash or two.
// Throws Failure(kUsage) for an unknown flag, a bad or missing value, or a stray word.
Flags parse_flags(int argc, char** argv);

// What --help prints.
std::string describe_flags();

}  // namespace qnn_ci
