// A loaded method with memory for its inputs and outputs.
#pragma once

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flags.h"

namespace qnn_ci {

using Shapes = std::vector<std::vector<int32_t>>;

// Memory of a tensor: the process's own, or the QNN backend's shared memory.
class Buffer {
 public:
  Buffer(size_t size, bool shared);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;
  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  bool shared_;
  void* data_;
};

class Model {
 public:
  // Sets the backend's options, loads the program and its method.
  // Throws Failure: kUsage for the flags and the file, kEnvironment for QNN, kFailed else.
  explicit Model(const Flags& flags);

  // Reads one raw file an input.
  void set_inputs(const std::vector<std::string>& files);

  // Executes `times` times; returns the milliseconds that all of them took.
  double execute(int times);

  // Writes DIR/output_EXECUTION_INDEX.raw for every output.
  void write_outputs(const std::string& directory, size_t execution);

  // Writes the ETDump and the intermediate outputs that the flags ask for.
  void write_traces(const Flags& flags);

 private:
  using Method = executorch::runtime::Method;

  void load_program(const Flags& flags);
  void load_method(const Flags& flags);
  void plan_memory();
  void place_inputs(bool shared);
  void place_outputs(bool shared);
  size_t count_output_bytes(size_t index, size_t planned) const;

  Shapes input_shapes_;
  Shapes output_shapes_;
  std::vector<uint8_t> debug_buffer_;
  std::unique_ptr<executorch::etdump::ETDumpGen> tracer_;
  std::unique_ptr<executorch::extension::FileDataLoader> loader_;
  std::unique_ptr<executorch::runtime::Program> program_;
  std::optional<executorch::runtime::MethodMeta> meta_;
  executorch::extension::MallocMemoryAllocator allocator_;
  executorch::extension::MallocMemoryAllocator scratch_;  // for kernels, emptied by the runtime
  std::vector<std::vector<uint8_t>> planned_;
  std::vector<executorch::runtime::Span<uint8_t>> spans_;
  std::unique_ptr<executorch::runtime::HierarchicalAllocator> planned_memory_;
  std::unique_ptr<executorch::runtime::MemoryManager> memory_;
  std::vector<Buffer> inputs_;
  std::vector<std::optional<Buffer>> outputs_;  // none where the program planned the memory
  std::unique_ptr<Method> method_;
};

}  // namespace qnn_ci
