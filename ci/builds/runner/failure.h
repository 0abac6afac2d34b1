// The runner's error type, with its exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace qnn_ci {

// The exit codes of all executorch-qnn-ci commands. A crash ends with its signal.
enum class ExitCode : int {
  kFine = 0,
  kFailed = 1,       // the model did not load, did not execute, or gave no output
  kUsage = 2,        // a flag, the input list or an input file is wrong
  kEnvironment = 3,  // a QNN library or the backend is missing
  kNoRoom = 4,       // a file cannot be written
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

}  // namespace qnn_ci
