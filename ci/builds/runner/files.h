// What the runner reads and writes besides the program.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "failure.h"

namespace qnn_ci {

using Shapes = std::vector<std::vector<int32_t>>;

inline std::string reason() { return std::string(": ") + std::strerror(errno); }

// Returns the lines that are not blank. Throws Failure(kUsage) for a file that cannot be read.
inline std::vector<std::string> read_lines(const std::string& path) {
  errno = 0;
  std::ifstream stream(path);
  if (!stream || !std::filesystem::is_regular_file(path)) {
    throw Failure(ExitCode::kUsage, "cannot read " + path + reason());
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      lines.push_back(line);
    }
  }
  return lines;
}

// Returns the paths of the raw input files of each run, one line per run. Throws Failure(kUsage).
inline std::vector<std::vector<std::string>> read_input_list(const std::string& path) {
  std::vector<std::vector<std::string>> executions;
  for (const std::string& line : read_lines(path)) {
    std::istringstream words(line);
    executions.emplace_back(std::istream_iterator<std::string>(words),
                            std::istream_iterator<std::string>());
  }
  if (executions.empty()) {
    throw Failure(ExitCode::kUsage, "the input list " + path + " is empty");
  }
  return executions;
}

// Returns the dimensions of each tensor, one line per tensor, separated by commas. An empty path
// gives no shapes.
inline Shapes read_shapes(const std::string& path) {
  Shapes shapes;
  for (std::string line : path.empty() ? std::vector<std::string>() : read_lines(path)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream words(line);
    std::vector<int32_t> shape;
    for (int32_t size = 0; words >> size;) {
      shape.push_back(size);
    }
    const bool negative = std::any_of(shape.begin(), shape.end(), [](int32_t s) { return s < 0; });
    if (!words.eof() || negative) {
      throw Failure(ExitCode::kUsage, "not a list of sizes in " + path + ": '" + line + "'");
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

// Reads a file of exactly `size` bytes into `target`.
inline void read_exactly(const std::string& path, void* target, size_t size) {
  errno = 0;
  std::error_code error;
  const auto found = std::filesystem::file_size(path, error);
  if (error) {
    throw Failure(ExitCode::kUsage, "cannot read input " + path + ": " + error.message());
  }
  if (found != size) {
    throw Failure(ExitCode::kUsage, "input " + path + " is " + std::to_string(found) +
                                        " bytes long, but the tensor needs " + std::to_string(size));
  }
  std::ifstream stream(path, std::ios::binary);
  stream.read(static_cast<char*>(target), static_cast<std::streamsize>(size));
  if (!stream) {
    throw Failure(ExitCode::kUsage, "cannot read input " + path + reason());
  }
}

// Throws Failure unless `path` is a directory (kUsage) that can be written (kNoRoom).
inline void require_directory(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    throw Failure(ExitCode::kUsage, "output directory " + path + " does not exist");
  }
  if (::access(path.c_str(), W_OK) != 0) {
    throw Failure(ExitCode::kNoRoom, "cannot write to " + path + reason());
  }
}

// Writes a file and checks that all bytes were written.
inline void write_file(const std::string& path, const void* data, size_t size) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  stream.close();
  if (!stream) {
    throw Failure(ExitCode::kNoRoom, "cannot write " + path + reason());
  }
}

}  // namespace qnn_ci
