// A loaded method with memory for its inputs and outputs.
#pragma once

#include <dlfcn.h>
#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "failure.h"
#include "files.h"
#include "flags.h"

// Exported by the wheel's QNN backend, which ships without its header.
extern "C" void* QnnExecuTorchAllocCustomMem(size_t bytes, size_t alignment);
extern "C" void QnnExecuTorchFreeCustomMem(void* pointer);

namespace qnn_ci {

namespace et = executorch::runtime;
using et::Error;
using et::EValue;
using et::TensorInfo;
using executorch::etdump::ETDumpGen;
using executorch::extension::Module;

constexpr char kBackend[] = "QnnBackend";
constexpr size_t kAlignment = 64;  // bytes, a cache line and more than any kernel asks for
constexpr int kUnwritten = 0xff;   // a float of such bytes is NaN, which fails every comparison

inline void require_ok(Error error, const std::string& what) {
  if (error != Error::Ok) {
    throw Failure(ExitCode::kFailed, what + ": " + et::to_string(error));
  }
}

inline et::BackendOption make_option(std::string_view flag, et::OptionValue value) {
  et::BackendOption option;
  std::snprintf(option.key, sizeof(option.key), "qnn_runtime_%s", std::string(flag).c_str());
  option.value = value;
  return option;
}

// Gives the QNN backend the options that the flags name; must run before a method is loaded.
// Throws Failure(kEnvironment) when the backend is not registered or refuses them.
inline void set_backend_options(const Flags& flags) {
  std::vector<et::BackendOption> options;
  for (const Row& row : kRows) {
    if (row.kind == Kind::kBackendNumber && flags.has(row.name)) {
      options.push_back(make_option(row.name, flags.number(row.name)));
    }
  }
  if (const std::string& path = flags.text("heap_profiling_path"); !path.empty()) {
    std::array<char, et::kMaxOptionValueLength> text{};
    if (path.size() >= text.size()) {
      throw Failure(ExitCode::kUsage, "--heap_profiling_path is longer than the backend allows");
    }
    path.copy(text.data(), text.size() - 1);
    options.push_back(make_option("heap_profiling_path", text));
  }
  if (et::get_backend_class(kBackend) == nullptr) {
    throw Failure(ExitCode::kEnvironment, "QnnBackend is not registered in this process");
  }
  const Error error = et::set_option(kBackend, {options.data(), options.size()});
  if (error != Error::Ok) {
    throw Failure(ExitCode::kEnvironment,
                  std::string("QnnBackend refused the runtime options: ") + et::to_string(error));
  }
}

// Throws Failure(kEnvironment) with the loader's reason when a QNN library cannot be loaded.
inline void require_qnn_libraries() {
  for (const char* name : {"libQnnSystem.so", "libQnnHtp.so"}) {
    void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
      throw Failure(ExitCode::kEnvironment, std::string("a QNN library cannot be loaded: ") +
                                                dlerror() +
                                                "; set LD_LIBRARY_PATH to the QNN libraries");
    }
    dlclose(handle);
  }
}

// Memory of a tensor: the process's own, or the QNN backend's shared memory.
struct Buffer {
  std::unique_ptr<void, void (*)(void*)> data;
  size_t size;
};

inline Buffer allocate(size_t size, bool shared) {
  // The backend's allocator crashes if its library is missing, as on a host.
  if (shared && dlopen("libcdsprpc.so", RTLD_LAZY) == nullptr) {
    throw Failure(ExitCode::kEnvironment,
                  std::string("--shared_buffer needs a device: ") + dlerror());
  }
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* data =
      shared ? QnnExecuTorchAllocCustomMem(rounded, et::MemoryAllocator::kDefaultAlignment)
             : std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (data == nullptr) {
    throw Failure(ExitCode::kEnvironment,
                  std::string("no ") + (shared ? "shared memory" : "memory") + " for a tensor of " +
                      std::to_string(size) + " bytes");
  }
  std::memset(data, kUnwritten, size);
  return {{data, shared ? QnnExecuTorchFreeCustomMem : std::free}, size};
}

// Returns the bytes of a tensor of that shape. Throws Failure(kUsage) if `info` has fewer.
inline size_t fit_bytes(const std::vector<int32_t>& shape, const TensorInfo& info,
                        const char* kind) {
  size_t bytes = et::elementSize(info.scalar_type());
  for (const int32_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) {
      throw Failure(ExitCode::kUsage, "a shape has too many elements for the address space");
    }
  }
  if (shape.size() != info.sizes().size() || bytes > info.nbytes()) {
    throw Failure(ExitCode::kUsage, std::string("an ") + kind +
                                        " shape has the wrong rank, or needs more than " +
                                        std::to_string(info.nbytes()) + " bytes");
  }
  return bytes;
}

class Model {
 public:
  // Sets the backend's options, loads the program and its method.
  // Throws Failure: kUsage for the flags and the file, kEnvironment for QNN, otherwise kFailed.
  explicit Model(const Flags& flags)
      : input_shapes_(read_shapes(flags.text("input_shape_path"))),
        output_shapes_(read_shapes(flags.text("output_shape_path"))) {
    set_backend_options(flags);
    load(flags);
    const bool shared = flags.has("shared_buffer");
    require_tensors("input", input_shapes_, meta_->num_inputs(), &et::MethodMeta::input_tag);
    require_tensors("output", output_shapes_, meta_->num_outputs(), &et::MethodMeta::output_tag);
    for (size_t index = 0; index < meta_->num_inputs(); ++index) {
      inputs_.push_back(allocate(meta_->input_tensor_meta(index)->nbytes(), shared));
    }
    for (size_t index = 0; index < meta_->num_outputs(); ++index) {
      const TensorInfo info = *meta_->output_tensor_meta(index);
      if (!info.is_memory_planned()) {
        outputs_.push_back(allocate(info.nbytes(), shared));
        bind(info, sizes_of(info), outputs_.back().data.get(), [&](const EValue& tensor) {
          require_ok(module_->set_output(name_, tensor, index),
                     "cannot place output " + std::to_string(index));
        });
      }
    }
  }

  // Reads one raw file per input.
  void set_inputs(const std::vector<std::string>& files) {
    if (files.size() != inputs_.size()) {
      throw Failure(ExitCode::kUsage, "a line of the input list names " +
                                          std::to_string(files.size()) +
                                          " file(s), but the number of inputs is " +
                                          std::to_string(inputs_.size()));
    }
    for (size_t index = 0; index < inputs_.size(); ++index) {
      const TensorInfo info = *meta_->input_tensor_meta(index);
      const auto shape = input_shapes_.empty() ? sizes_of(info) : input_shapes_[index];
      void* data = inputs_[index].data.get();
      read_exactly(files[index], data, fit_bytes(shape, info, "input"));
      bind(info, shape, data, [&](const EValue& tensor) {
        require_ok(module_->set_input(name_, tensor, index),
                   "the method refused input " + std::to_string(index) + ", " + files[index]);
      });
    }
  }

  // Executes `times` times; returns the milliseconds that all of them took.
  double execute(int times) {
    for (const Buffer& output : outputs_) {
      std::memset(output.data.get(), kUnwritten, output.size);
    }
    const auto start = std::chrono::steady_clock::now();
    for (int time = 0; time < times; ++time) {
      require_ok(module_->execute(name_).error(), "method " + name_ + " failed");
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }

  // Writes DIR/output_EXECUTION_INDEX.raw for every output.
  void write_outputs(const std::string& directory, size_t execution) {
    for (size_t index = 0; index < meta_->num_outputs(); ++index) {
      const auto value = module_->get_output(name_, index);
      require_ok(value.error(), "output " + std::to_string(index) + " cannot be read");
      const auto& tensor = value->toTensor();
      if (tensor.const_data_ptr() == nullptr) {
        throw Failure(ExitCode::kFailed, "output " + std::to_string(index) + " has no memory");
      }
      const size_t bytes =
          output_shapes_.empty()
              ? tensor.nbytes()
              : fit_bytes(output_shapes_[index], *meta_->output_tensor_meta(index), "output");
      write_file(directory + "/output_" + std::to_string(execution) + "_" + std::to_string(index) +
                     ".raw",
                 tensor.const_data_ptr(), bytes);
    }
  }

  // Writes the ETDump and the intermediate outputs that the flags ask for.
  void write_traces(const Flags& flags) {
    if (tracer_ == nullptr) {
      return;
    }
    const auto dump = tracer_->get_etdump_data();
    const std::unique_ptr<void, decltype(&std::free)> owner(dump.buf, &std::free);
    if (dump.buf == nullptr || dump.size == 0) {
      throw Failure(ExitCode::kFailed, "the ETDump is empty");
    }
    if (flags.has("etdump_path")) {
      write_file(flags.text("etdump_path"), dump.buf, dump.size);
    }
    if (flags.has("dump_intermediate_outputs")) {
      write_file(flags.text("debug_output_path"), debug_buffer_.data(), debug_buffer_.size());
    }
  }

 private:
  void load(const Flags& flags) {
    const std::string& path = flags.text("model_path");
    if (!std::filesystem::is_regular_file(path)) {
      throw Failure(ExitCode::kUsage, "there is no model " + path);
    }
    std::unique_ptr<ETDumpGen> tracer;
    if (flags.has("etdump_path") || flags.has("dump_intermediate_outputs")) {
      tracer = std::make_unique<ETDumpGen>();
      tracer_ = tracer.get();
    }
    if (flags.has("dump_intermediate_outputs")) {
      debug_buffer_.resize(static_cast<size_t>(flags.number("debug_buffer_size")));
      tracer->set_debug_buffer({debug_buffer_.data(), debug_buffer_.size()});
      tracer->set_event_tracer_debug_level(et::EventTracerDebugLogLevel::kIntermediateOutputs);
    }
    module_ = std::make_unique<Module>(path, Module::LoadMode::File, std::move(tracer));
    require_ok(module_->load(et::Program::Verification::InternalConsistency),
               path + " is not a program that this runtime can read");
    const size_t count = module_->program()->num_methods();
    const int wanted = flags.number("method_index");
    if (static_cast<size_t>(wanted) >= count) {
      throw Failure(ExitCode::kUsage, "--method_index is " + std::to_string(wanted) +
                                          ", but the number of methods is " + std::to_string(count));
    }
    name_ = *module_->program()->get_method_name(wanted);
    auto meta = module_->method_meta(name_);
    require_ok(meta.error(), "cannot read the method's description");
    meta_.emplace(*meta);
    const Error error = module_->load_method(name_);
    if (error != Error::Ok && meta_->uses_backend(kBackend)) {
      require_qnn_libraries();
    }
    require_ok(error, "cannot load method " + name_);
  }

  void require_tensors(const char* kind, const Shapes& shapes, size_t count,
                       et::Result<et::Tag> (et::MethodMeta::*tag_of)(size_t) const) const {
    if (!shapes.empty() && shapes.size() != count) {
      throw Failure(ExitCode::kUsage, "the file of " + std::string(kind) + " shapes lists " +
                                          std::to_string(shapes.size()) + ", but the number of " +
                                          kind + "s is " + std::to_string(count));
    }
    for (size_t index = 0; index < count; ++index) {
      const auto tag = ((*meta_).*tag_of)(index);
      if (!tag.ok() || *tag != et::Tag::Tensor) {
        throw Failure(ExitCode::kUsage, std::string(kind) + " " + std::to_string(index) +
                                            " of the method is not a tensor");
      }
    }
  }

  static std::vector<int32_t> sizes_of(const TensorInfo& info) {
    return {info.sizes().begin(), info.sizes().end()};
  }

  // Calls `take` with a tensor over `data`.
  template <typename Take>
  static void bind(const TensorInfo& info, std::vector<int32_t> shape, void* data, Take take) {
    auto* order = const_cast<executorch::aten::DimOrderType*>(info.dim_order().data());
    executorch::aten::TensorImpl tensor(info.scalar_type(), static_cast<ssize_t>(shape.size()),
                                        shape.data(), data, order);
    take(EValue(executorch::aten::Tensor(&tensor)));
  }

  Shapes input_shapes_;
  Shapes output_shapes_;
  std::vector<uint8_t> debug_buffer_;
  std::vector<Buffer> inputs_;
  std::vector<Buffer> outputs_;  // of outputs without planned memory in the program
  std::string name_;
  ETDumpGen* tracer_ = nullptr;
  std::unique_ptr<Module> module_;
  std::optional<et::MethodMeta> meta_;
};

}  // namespace qnn_ci
