#include "flags.h"

#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>
#include <variant>

#include "failure.h"

namespace qnn_ci {
namespace {

constexpr int kMany = std::numeric_limits<int>::max();

using Text = std::string Flags::*;
using Number = int Flags::*;
using Option = std::optional<int> Flags::*;
using Switch = bool Flags::*;

struct Row {
  std::string_view name;
  std::variant<Text, Number, Option, Switch> member;
  std::string_view help;
  int low = 0;
  int high = kMany;
};

const Row kRows[] = {
    {"model_path", &Flags::model_path, "the .pte to run"},
    {"input_list_path", &Flags::input_list_path,
     "text file, a line an execution: raw input files in the method's order, separated by spaces"},
    {"output_folder_path", &Flags::output_folder_path,
     "existing directory for output_EXECUTION_INDEX.raw (default: outputs)"},
    {"iteration", &Flags::iteration, "timed runs an execution (default: 1)", 1},
    {"warm_up", &Flags::warm_up, "runs before the timed ones (default: 0)"},
    {"method_index", &Flags::method_index, "which method of the program (default: 0)"},
    {"shared_buffer", &Flags::shared_buffer, "inputs and outputs in the backend's shared memory"},
    {"input_shape_path", &Flags::input_shape_path,
     "for dynamic shapes: a line an input, dimensions separated by commas"},
    {"output_shape_path", &Flags::output_shape_path, "the same for outputs"},
    {"etdump_path", &Flags::etdump_path, "write an ETDump here (default: none)"},
    {"dump_intermediate_outputs", &Flags::dump_intermediate_outputs,
     "log every delegate's intermediate outputs"},
    {"debug_output_path", &Flags::debug_output_path, "where intermediate outputs go"},
    {"debug_buffer_size", &Flags::debug_buffer_size, "bytes for them (default: 100000000)", 1},
    {"performance_output_path", &Flags::performance_output_path,
     "write the average time of an execution, in ms (default: none)"},
    {"log_level", &Flags::log_level, "QNN log level, 0 to 5", 0, 5},
    {"htp_performance_mode", &Flags::htp_performance_mode, "HTP performance mode, 0 to 9", 0, 9},
    {"profile_level", &Flags::profile_level, "profile level, 0 to 2", 0, 2},
    {"lpai_fps", &Flags::lpai_fps, "LPAI frames a second"},
    {"lpai_ftrt_ratio", &Flags::lpai_ftrt_ratio, "LPAI ratio, faster than real time"},
    {"lpai_client_perf_type", &Flags::lpai_client_perf_type, "1 real time, 2 not", 1, 2},
    {"lpai_affinity", &Flags::lpai_affinity, "1 soft, 2 hard", 1, 2},
    {"lpai_core_selection", &Flags::lpai_core_selection, "LPAI cores, a bit each"},
    {"heap_profiling_path", &Flags::heap_profiling_path, "write QNN's heap profile here"},
    {"help", &Flags::help, "print this"},
};

[[noreturn]] void reject(const std::string& message) {
  throw Failure(ExitCode::kUsage, message + "; --help lists the flags");
}

const Row* find_row(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

int parse_number(const Row& row, std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < row.low || value > row.high) {
    std::ostringstream message;
    message << "--" << row.name << " takes a whole number from " << row.low;
    if (row.high != kMany) {
      message << " to " << row.high;
    }
    message << ", not '" << text << "'";
    reject(message.str());
  }
  return value;
}

void assign(Flags& flags, const Row& row, const std::string& value) {
  if (const auto* text = std::get_if<Text>(&row.member)) {
    flags.*(*text) = value;
  } else if (const auto* number = std::get_if<Number>(&row.member)) {
    flags.*(*number) = parse_number(row, value);
  } else if (const auto* option = std::get_if<Option>(&row.member)) {
    flags.*(*option) = parse_number(row, value);
  } else if (value == "true" || value == "1" || value == "false" || value == "0") {
    flags.*std::get<Switch>(row.member) = value == "true" || value == "1";
  } else {
    reject("--" + std::string(row.name) + " takes true or false, not '" + value + "'");
  }
}

bool is_switch(const Row* row) {
  return row != nullptr && std::holds_alternative<Switch>(row->member);
}

}  // namespace

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  for (int index = 1; index < argc; ++index) {
    std::string word = argv[index];
    if (word.size() < 2 || word[0] != '-') {
      reject("'" + word + "' is no flag");
    }
    word.erase(0, word[1] == '-' ? 2 : 1);
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Row* row = find_row(name);
    if (row == nullptr && name.rfind("no", 0) == 0 && is_switch(find_row(name.substr(2)))) {
      assign(flags, *find_row(name.substr(2)), "false");
    } else if (row == nullptr) {
      reject("no flag --" + name);
    } else if (equals != std::string::npos) {
      assign(flags, *row, word.substr(equals + 1));
    } else if (is_switch(row)) {
      assign(flags, *row, "true");
    } else if (index + 1 < argc) {
      assign(flags, *row, argv[++index]);
    } else {
      reject("--" + name + " needs a value");
    }
  }
  return flags;
}

std::string describe_flags() {
  std::ostringstream text;
  text << "Runs an ExecuTorch program with the QNN backend.\n\n";
  for (const Row& row : kRows) {
    text << "  --" << row.name << "\n      " << row.help << "\n";
  }
  text << "\nExit codes: 0 fine, 1 the model failed, 2 a flag or a file given is wrong,\n"
          "3 the environment is not fit, 4 a file cannot be written. Options of the QNN backend\n"
          "override those of the .pte.\n";
  return text.str();
}

}  // namespace qnn_ci
