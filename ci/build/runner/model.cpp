#include "model.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "failure.h"
#include "files.h"
#include "options.h"

// Exported by the wheel's QNN backend, which ships without its header.
extern "C" void* QnnExecuTorchAllocCustomMem(size_t bytes, size_t alignment);
extern "C" void QnnExecuTorchFreeCustomMem(void* pointer);

namespace qnn_ci {
namespace {

using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::etdump::ETDumpGen;
using executorch::extension::FileDataLoader;
using executorch::runtime::Error;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Program;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

constexpr size_t kAlignment = 64;  // bytes, a cache line and more than any kernel asks for
constexpr int kUnwritten = 0xff;   // a float of such bytes is NaN: no comparison passes on it

[[noreturn]] void fail(const std::string& what, Error error) {
  throw Failure(ExitCode::kFailed, what + ": " + executorch::runtime::to_string(error));
}

void require_tensor(executorch::runtime::Result<Tag> tag, const char* kind, size_t index) {
  if (!tag.ok() || *tag != Tag::Tensor) {
    throw Failure(ExitCode::kUsage, std::string(kind) + " " + std::to_string(index) +
                                        " of the method is no tensor; only tensors have raw files");
  }
}

size_t count_elements(const std::vector<int32_t>& shape) {
  size_t count = 1;
  for (const int32_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<size_t>(size), &count)) {
      throw Failure(ExitCode::kUsage, "a shape has more elements than memory has addresses");
    }
  }
  return count;
}

void require_count(const Shapes& shapes, size_t expected, const char* kind) {
  if (!shapes.empty() && shapes.size() != expected) {
    throw Failure(ExitCode::kUsage, std::to_string(shapes.size()) + " " + kind + " shapes given, " +
                                        "the method has " + std::to_string(expected));
  }
}

size_t fit_bytes(const std::vector<int32_t>& shape, const TensorInfo& info, const char* kind) {
  const size_t bytes =
      count_elements(shape) * executorch::runtime::elementSize(info.scalar_type());
  if (shape.size() != info.sizes().size() || bytes > info.nbytes()) {
    throw Failure(ExitCode::kUsage, std::string("an ") + kind +
                                        " shape has another rank than the tensor, or exceeds " +
                                        std::to_string(info.nbytes()) + " bytes");
  }
  return bytes;
}

// The backend's allocator crashes where the library behind it is not there, as on a host.
void require_shared_memory() {
  static void* const handle = dlopen("libcdsprpc.so", RTLD_LAZY);
  if (handle == nullptr) {
    throw Failure(ExitCode::kEnvironment, std::string("--shared_buffer needs a device: ") + dlerror());
  }
}

}  // namespace

Buffer::Buffer(size_t size, bool shared) : size_(size), shared_(shared) {
  if (shared) {
    require_shared_memory();
  }
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  data_ = shared ? QnnExecuTorchAllocCustomMem(rounded, MemoryAllocator::kDefaultAlignment)
                 : std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (data_ == nullptr) {
    throw Failure(ExitCode::kEnvironment,
                  std::string("no ") + (shared ? "shared memory" : "memory") + " for a tensor of " +
                      std::to_string(size) + " bytes");
  }
  std::memset(data_, kUnwritten, size);
}

Buffer::Buffer(Buffer&& other) noexcept
    : size_(other.size_), shared_(other.shared_), data_(std::exchange(other.data_, nullptr)) {}

Buffer::~Buffer() {
  if (shared_ && data_ != nullptr) {
    QnnExecuTorchFreeCustomMem(data_);
  } else {
    std::free(data_);
  }
}

Model::Model(const Flags& flags)
    : input_shapes_(read_shapes(flags.input_shape_path)),
      output_shapes_(read_shapes(flags.output_shape_path)) {
  set_runtime_options(flags);
  load_program(flags);
  plan_memory();
  load_method(flags);
  place_inputs(flags.shared_buffer);
  place_outputs(flags.shared_buffer);
}

void Model::load_program(const Flags& flags) {
  if (!std::filesystem::is_regular_file(flags.model_path)) {
    throw Failure(ExitCode::kUsage, "there is no model " + flags.model_path);
  }
  auto loader = FileDataLoader::from(flags.model_path.c_str());
  if (!loader.ok()) {
    fail("cannot read " + flags.model_path, loader.error());
  }
  loader_ = std::make_unique<FileDataLoader>(std::move(*loader));
  auto program = Program::load(loader_.get(), Program::Verification::InternalConsistency);
  if (!program.ok()) {
    fail(flags.model_path + " is not a program that this runtime reads", program.error());
  }
  program_ = std::make_unique<Program>(std::move(*program));
  if (static_cast<size_t>(flags.method_index) >= program_->num_methods()) {
    throw Failure(ExitCode::kUsage, "the program has " + std::to_string(program_->num_methods()) +
                                        " methods, --method_index is " +
                                        std::to_string(flags.method_index));
  }
  auto meta = program_->method_meta(*program_->get_method_name(flags.method_index));
  if (!meta.ok()) {
    fail("cannot read the method's description", meta.error());
  }
  meta_.emplace(*meta);
}

void Model::plan_memory() {
  const size_t count = meta_->num_memory_planned_buffers();
  planned_.reserve(count);
  for (size_t index = 0; index < count; ++index) {
    auto size = meta_->memory_planned_buffer_size(index);
    if (!size.ok()) {
      fail("cannot read the size of planned memory", size.error());
    }
    planned_.emplace_back(static_cast<size_t>(*size));
    spans_.emplace_back(planned_.back().data(), planned_.back().size());
  }
  planned_memory_ = std::make_unique<HierarchicalAllocator>(
      executorch::runtime::Span<executorch::runtime::Span<uint8_t>>(spans_.data(), spans_.size()));
  memory_ = std::make_unique<MemoryManager>(&allocator_, planned_memory_.get(), &scratch_);
}

void Model::load_method(const Flags& flags) {
  if (!flags.etdump_path.empty() || flags.dump_intermediate_outputs) {
    tracer_ = std::make_unique<ETDumpGen>();
  }
  auto method = program_->load_method(meta_->name(), memory_.get(), tracer_.get());
  if (!method.ok()) {
    const std::string reason = meta_->uses_backend("QnnBackend") ? explain_qnn_libraries() : "";
    if (!reason.empty()) {
      throw Failure(ExitCode::kEnvironment, "a QNN library cannot be loaded: " + reason +
                                                "; set LD_LIBRARY_PATH to the QNN libraries");
    }
    fail(std::string("cannot load method ") + meta_->name(), method.error());
  }
  method_ = std::make_unique<Method>(std::move(*method));
  if (flags.dump_intermediate_outputs) {
    debug_buffer_.resize(static_cast<size_t>(flags.debug_buffer_size));
    tracer_->set_debug_buffer({debug_buffer_.data(), debug_buffer_.size()});
    tracer_->set_event_tracer_debug_level(
        executorch::runtime::EventTracerDebugLogLevel::kIntermediateOutputs);
  }
}

void Model::place_inputs(bool shared) {
  require_count(input_shapes_, meta_->num_inputs(), "input");
  for (size_t index = 0; index < meta_->num_inputs(); ++index) {
    require_tensor(meta_->input_tag(index), "input", index);
    inputs_.emplace_back(meta_->input_tensor_meta(index)->nbytes(), shared);
  }
}

void Model::place_outputs(bool shared) {
  require_count(output_shapes_, meta_->num_outputs(), "output");
  for (size_t index = 0; index < meta_->num_outputs(); ++index) {
    require_tensor(meta_->output_tag(index), "output", index);
    const auto info = meta_->output_tensor_meta(index);
    outputs_.emplace_back();
    if (info->is_memory_planned()) {
      continue;
    }
    outputs_.back().emplace(info->nbytes(), shared);
    const Buffer& buffer = *outputs_.back();
    const Error error = method_->set_output_data_ptr(buffer.data(), buffer.size(), index);
    if (error != Error::Ok) {
      fail("cannot place output " + std::to_string(index), error);
    }
  }
}

void Model::set_inputs(const std::vector<std::string>& files) {
  if (files.size() != inputs_.size()) {
    throw Failure(ExitCode::kUsage, "a line of the input list has " + std::to_string(files.size()) +
                                        " files, the method " + std::to_string(inputs_.size()) +
                                        " inputs");
  }
  for (size_t index = 0; index < inputs_.size(); ++index) {
    const TensorInfo info = *meta_->input_tensor_meta(index);
    std::vector<int32_t> shape(info.sizes().begin(), info.sizes().end());
    if (!input_shapes_.empty()) {
      shape = input_shapes_[index];
    }
    void* data = inputs_[index].data();
    read_exactly(files[index], data, fit_bytes(shape, info, "input"));
    TensorImpl tensor(info.scalar_type(), static_cast<ssize_t>(shape.size()), shape.data(), data,
                      const_cast<TensorImpl::DimOrderType*>(info.dim_order().data()));
    const Error error = method_->set_input(Tensor(&tensor), index);
    if (error != Error::Ok) {
      fail("the method refused input " + std::to_string(index) + ", " + files[index], error);
    }
  }
}

double Model::execute(int times) {
  for (const auto& output : outputs_) {
    if (output) {
      std::memset(output->data(), kUnwritten, output->size());
    }
  }
  const auto start = std::chrono::steady_clock::now();
  for (int time = 0; time < times; ++time) {
    const Error error = method_->execute();
    if (error != Error::Ok) {
      fail(std::string("method ") + meta_->name() + " failed", error);
    }
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

size_t Model::count_output_bytes(size_t index, size_t actual) const {
  if (output_shapes_.empty()) {
    return actual;
  }
  return fit_bytes(output_shapes_[index], *meta_->output_tensor_meta(index), "output");
}

void Model::write_outputs(const std::string& directory, size_t execution) {
  for (size_t index = 0; index < meta_->num_outputs(); ++index) {
    const Tensor& tensor = method_->get_output(index).toTensor();
    const void* data = tensor.const_data_ptr();
    if (data == nullptr) {
      throw Failure(ExitCode::kFailed, "output " + std::to_string(index) + " has no memory");
    }
    const std::string name =
        "output_" + std::to_string(execution) + "_" + std::to_string(index) + ".raw";
    write_file(directory + "/" + name, data, count_output_bytes(index, tensor.nbytes()));
  }
}

void Model::write_traces(const Flags& flags) {
  if (tracer_ == nullptr) {
    return;
  }
  const auto dump = tracer_->get_etdump_data();
  const std::unique_ptr<void, decltype(&std::free)> owner(dump.buf, &std::free);
  if (dump.buf == nullptr || dump.size == 0) {
    throw Failure(ExitCode::kFailed, "the ETDump is empty");
  }
  if (!flags.etdump_path.empty()) {
    write_file(flags.etdump_path, dump.buf, dump.size);
  }
  if (flags.dump_intermediate_outputs) {
    write_file(flags.debug_output_path, debug_buffer_.data(), debug_buffer_.size());
  }
}

}  // namespace qnn_ci
