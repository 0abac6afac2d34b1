// The command line. The flags have the same names as those of ExecuTorch's qnn_executor_runner.
#pragma once

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "failure.h"

namespace qnn_ci {

constexpr int kMany = std::numeric_limits<int>::max();

// A number for the QNN backend overrides the option in the .pte.
enum class Kind { kText, kNumber, kSwitch, kBackendNumber };

struct Row {
  std::string_view name;
  Kind kind;
  const char* initial;  // empty if the flag has no default
  const char* help;
  int low = 0;
  int high = kMany;
};

constexpr Row kRows[] = {
    {"model_path", Kind::kText, "", "the .pte to run"},
    {"input_list_path", Kind::kText, "",
     "text file, one line per run: raw input files in the method's order, separated by spaces"},
    {"output_folder_path", Kind::kText, "outputs",
     "existing directory for output_EXECUTION_INDEX.raw (default: outputs)"},
    {"iteration", Kind::kNumber, "1", "timed runs per line (default: 1)", 1},
    {"warm_up", Kind::kNumber, "0", "runs before the timed ones (default: 0)"},
    {"method_index", Kind::kNumber, "0", "index of the method in the program (default: 0)"},
    {"shared_buffer", Kind::kSwitch, "", "put inputs and outputs into the backend's shared memory"},
    {"input_shape_path", Kind::kText, "",
     "for dynamic shapes: one line per input, dimensions separated by commas"},
    {"output_shape_path", Kind::kText, "", "the shapes of the outputs, in the same format"},
    {"etdump_path", Kind::kText, "", "write an ETDump here (default: none)"},
    {"dump_intermediate_outputs", Kind::kSwitch, "", "log every delegate's intermediate outputs"},
    {"debug_output_path", Kind::kText, "", "file for the intermediate outputs"},
    {"debug_buffer_size", Kind::kNumber, "100000000", "bytes of memory for intermediate outputs (default: 100000000)", 1},
    {"performance_output_path", Kind::kText, "",
     "write the average time of an execution in ms to this file (default: none)"},
    {"log_level", Kind::kBackendNumber, "", "QNN log level, 0 to 5", 0, 5},
    {"htp_performance_mode", Kind::kBackendNumber, "", "HTP performance mode, 0 to 8", 0, 8},
    {"profile_level", Kind::kBackendNumber, "", "QNN profile level, 0 to 2", 0, 2},
    {"lpai_fps", Kind::kBackendNumber, "", "LPAI frames per second"},
    {"lpai_ftrt_ratio", Kind::kBackendNumber, "", "LPAI faster-than-real-time ratio"},
    {"lpai_client_perf_type", Kind::kBackendNumber, "", "LPAI client: 1 real time, 2 not real time", 1, 2},
    {"lpai_affinity", Kind::kBackendNumber, "", "LPAI affinity: 1 soft, 2 hard", 1, 2},
    {"lpai_core_selection", Kind::kBackendNumber, "", "LPAI cores, one bit per core"},
    {"heap_profiling_path", Kind::kText, "", "write QNN's heap profile here"},
    {"help", Kind::kSwitch, "", "print this help"},
};

inline const Row* find_row(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

// The edit distance of two words: how many letters to insert, delete or replace.
inline size_t distance(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < one.size(); ++i) {
    size_t corner = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < other.size(); ++j) {
      const size_t replaced = corner + (one[i] == other[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({corner + 1, row[j] + 1, replaced});
    }
  }
  return row.back();
}

inline std::string_view nearest(std::string_view name) {
  const auto is_nearer = [&](const Row& one, const Row& other) {
    return distance(one.name, name) < distance(other.name, name);
  };
  return std::min_element(std::begin(kRows), std::end(kRows), is_nearer)->name;
}

class Flags {
 public:
  // Reads --name=value, --name value, --switch and --noswitch, with one dash or two.
  // Throws Failure(kUsage) for an unknown flag, a bad or missing value, or a stray word.
  Flags(int argc, char** argv) {
    for (const Row& row : kRows) {
      values_[row.name] = row.initial;
    }
    for (int index = 1; index < argc; ++index) {
      std::string word = argv[index];
      if (word.size() < 2 || word[0] != '-') {
        reject("'" + word + "' is not a flag");
      }
      word.erase(0, word[1] == '-' ? 2 : 1);
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const Row* row = find_row(name);
      const Row* negated = name.rfind("no", 0) == 0 ? find_row(name.substr(2)) : nullptr;
      if (row == nullptr && negated != nullptr && negated->kind == Kind::kSwitch) {
        assign(*negated, "false");
      } else if (row == nullptr) {
        reject("there is no flag --" + name + "; the nearest is --" + std::string(nearest(name)));
      } else if (equals != std::string::npos) {
        assign(*row, word.substr(equals + 1));
      } else if (row->kind == Kind::kSwitch) {
        assign(*row, "true");
      } else if (index + 1 < argc) {
        assign(*row, argv[++index]);
      } else {
        reject("--" + name + " needs a value");
      }
    }
  }

  const std::string& text(std::string_view name) const { return values_.at(name); }
  bool has(std::string_view name) const { return !text(name).empty(); }
  int number(std::string_view name) const { return std::stoi(text(name)); }

 private:
  [[noreturn]] static void reject(const std::string& message) {
    throw Failure(ExitCode::kUsage, message + "; --help lists the flags");
  }

  void assign(const Row& row, std::string value) {
    if (row.kind == Kind::kSwitch) {
      if (value != "true" && value != "1" && value != "false" && value != "0") {
        reject("--" + std::string(row.name) + " takes true or false, not '" + value + "'");
      }
      value = value == "true" || value == "1" ? "true" : "";
    } else if (row.kind != Kind::kText) {
      check_number(row, value);
    }
    values_[row.name] = value;
  }

  static void check_number(const Row& row, const std::string& text) {
    int value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < row.low || value > row.high) {
      const std::string most = row.high == kMany ? "" : " to " + std::to_string(row.high);
      reject("--" + std::string(row.name) + " takes a whole number from " +
             std::to_string(row.low) + most + ", not '" + text + "'");
    }
  }

  std::map<std::string_view, std::string> values_;
};

// What --help prints.
inline std::string describe_flags() {
  std::ostringstream text;
  text << "Runs an ExecuTorch program with the QNN backend.\n\n";
  for (const Row& row : kRows) {
    text << "  --" << row.name << "\n      " << row.help << "\n";
  }
  text << "\nExit codes: 0 success, 1 the model failed, 2 a flag or an input file is wrong,\n"
          "3 the environment is unfit, 4 a file cannot be written. Options of the QNN backend\n"
          "override those of the .pte.\n";
  return text.str();
}

}  // namespace qnn_ci
