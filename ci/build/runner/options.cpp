#include "options.h"

#include <dlfcn.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "failure.h"

namespace qnn_ci {
namespace {

using executorch::runtime::BackendOption;
using executorch::runtime::Error;

constexpr char kBackend[] = "QnnBackend";

struct Row {
  const char* key;
  std::optional<int> Flags::*member;
};

const Row kRows[] = {
    {"qnn_runtime_log_level", &Flags::log_level},
    {"qnn_runtime_htp_performance_mode", &Flags::htp_performance_mode},
    {"qnn_runtime_profile_level", &Flags::profile_level},
    {"qnn_runtime_lpai_fps", &Flags::lpai_fps},
    {"qnn_runtime_lpai_ftrt_ratio", &Flags::lpai_ftrt_ratio},
    {"qnn_runtime_lpai_client_perf_type", &Flags::lpai_client_perf_type},
    {"qnn_runtime_lpai_affinity", &Flags::lpai_affinity},
    {"qnn_runtime_lpai_core_selection", &Flags::lpai_core_selection},
};

BackendOption make_option(const char* key, executorch::runtime::OptionValue value) {
  BackendOption option;
  std::snprintf(option.key, sizeof(option.key), "%s", key);
  option.value = value;
  return option;
}

std::vector<BackendOption> collect_options(const Flags& flags) {
  std::vector<BackendOption> options;
  for (const Row& row : kRows) {
    if (const auto& value = flags.*row.member) {
      options.push_back(make_option(row.key, *value));
    }
  }
  if (!flags.heap_profiling_path.empty()) {
    std::array<char, executorch::runtime::kMaxOptionValueLength> text{};
    if (flags.heap_profiling_path.size() >= text.size()) {
      throw Failure(ExitCode::kUsage, "--heap_profiling_path is longer than the backend takes");
    }
    flags.heap_profiling_path.copy(text.data(), text.size() - 1);
    options.push_back(make_option("qnn_runtime_heap_profiling_path", text));
  }
  return options;
}

}  // namespace

void set_runtime_options(const Flags& flags) {
  if (executorch::runtime::get_backend_class(kBackend) == nullptr) {
    throw Failure(ExitCode::kEnvironment, "QnnBackend is not registered in this process");
  }
  std::vector<BackendOption> options = collect_options(flags);
  const Error error =
      executorch::runtime::set_option(kBackend, {options.data(), options.size()});
  if (error != Error::Ok) {
    throw Failure(ExitCode::kEnvironment, std::string("QnnBackend refused the runtime options: ") +
                                              executorch::runtime::to_string(error));
  }
}

std::string explain_qnn_libraries() {
  for (const char* name : {"libQnnSystem.so", "libQnnHtp.so"}) {
    void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
      return dlerror();
    }
    dlclose(handle);
  }
  return "";
}

}  // namespace qnn_ci
