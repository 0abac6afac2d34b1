// What the runner reads and writes besides the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace qnn_ci {

// One execution a line, empty lines ignored: the paths of its raw input files.
// Throws Failure(kUsage) for a file that cannot be read or names nothing.
std::vector<std::vector<std::string>> read_input_list(const std::string& path);

// One tensor a line: its dimensions, separated by commas. An empty path gives no shapes.
std::vector<std::vector<int32_t>> read_shapes(const std::string& path);

// Fills exactly `size` bytes at `target` from a file of exactly that size.
void read_exactly(const std::string& path, void* target, size_t size);

// Throws Failure unless `path` is a directory (kUsage) that can be written (kEnvironment).
void require_directory(const std::string& path);

// Writes a file and checks that every byte has reached it.
void write_file(const std::string& path, const void* data, size_t size);

}  // namespace qnn_ci
