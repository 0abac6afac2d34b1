"""Changes that somebody could propose to main, each with the findings that it must have.

Changes of a group touch no file or target of each other, so that one comparison judges all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEW = ""
LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
PLAIN_BUCK = 'load(":targets.bzl", "define_common_targets")\ndefine_common_targets()\n'
MEDIATEK = "backends/mediatek"
LISTS = "shim_et/xplat/executorch/build/build_variables.bzl"


@dataclass(frozen=True)
class Change:
    """Texts to replace in files (an empty one: a new file; at the end where there is one), files
    to move or delete, and what must be found: kind and path, and a detail where that matters."""

    name: str
    edits: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    moves: Mapping[str, str] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    found: frozenset[tuple[str, ...]] = frozenset()


def change(
    name: str,
    *edits: tuple[str, str, str],
    moves: Mapping[str, str] | None = None,
    deleted: tuple[str, ...] = (),
    found: tuple[tuple[str, ...], ...] = (),
) -> Change:
    files: dict[str, tuple[tuple[str, str], ...]] = {}
    for path, old, new in edits:
        files[path] = (*files.get(path, ()), (old, new))
    return Change(name, files, moves or {}, deleted, frozenset(found))


def library(name: str, source: str) -> str:
    return (
        f'{LOAD}def define_common_targets():\n    runtime.cxx_library(\n        name = "{name}",\n'
        f'        srcs = ["{source}"],\n    )\n'
    )


SOURCES = (
    change(
        "a source for Buck alone",
        ("extension/flat_tensor/map_cache.cpp", NEW, "int a;\n"),
        (
            "extension/flat_tensor/targets.bzl",
            '"flat_tensor_data_map.cpp",',
            '"flat_tensor_data_map.cpp", "map_cache.cpp",',
        ),
        found=(("buck-only-source", "extension/flat_tensor/map_cache.cpp"),),
    ),
    change(
        "a source for CMake alone",
        ("backends/nxp/runtime/NeutronCache.cpp", NEW, "int a;\n"),
        (
            "backends/nxp/CMakeLists.txt",
            "runtime/NeutronBackend.cpp",
            "runtime/NeutronBackend.cpp runtime/NeutronCache.cpp",
        ),
        found=(("cmake-only-source", "backends/nxp/runtime/NeutronCache.cpp"),),
    ),
    change(
        "a source for both",
        ("extension/llm/sampler/top_k.cpp", NEW, "int a;\n"),
        ("extension/llm/sampler/targets.bzl", '"sampler.cpp",', '"sampler.cpp", "top_k.cpp",'),
        (
            "extension/llm/sampler/CMakeLists.txt",
            "STATIC sampler.cpp",
            "STATIC sampler.cpp top_k.cpp",
        ),
    ),
    change(
        "renamed on both sides",
        ("backends/cuda/runtime/targets.bzl", '"platform/platform.cpp",', '"platform/host.cpp",'),
        (
            "backends/cuda/CMakeLists.txt",
            "runtime/platform/platform.cpp",
            "runtime/platform/host.cpp",
        ),
        moves={
            "backends/cuda/runtime/platform/platform.cpp": "backends/cuda/runtime/platform/host.cpp"
        },
    ),
    change(
        "deleted, and Buck forgotten",
        (
            "backends/mediatek/CMakeLists.txt",
            "${CMAKE_CURRENT_LIST_DIR}/runtime/NeuronBufferAllocator.cpp",
            "",
        ),
        deleted=("backends/mediatek/runtime/NeuronBufferAllocator.cpp",),
        found=(("missing-file", "backends/mediatek/runtime/NeuronBufferAllocator.cpp"),),
    ),
    change(
        "renamed, and Buck forgotten",
        (
            "backends/mediatek/CMakeLists.txt",
            "runtime/NeuronExecutor.cpp",
            "runtime/NeuronRunner.cpp",
        ),
        moves={f"{MEDIATEK}/runtime/NeuronExecutor.cpp": f"{MEDIATEK}/runtime/NeuronRunner.cpp"},
        found=(
            ("missing-file", "backends/mediatek/runtime/NeuronExecutor.cpp"),
            ("cmake-only-source", "backends/mediatek/runtime/NeuronRunner.cpp"),
        ),
    ),
    change(
        "renamed, and CMake forgotten",
        ("extension/image/targets.bzl", '"image_processor_simd.cpp",', '"image_simd.cpp",'),
        moves={"extension/image/image_processor_simd.cpp": "extension/image/image_simd.cpp"},
        found=(
            ("missing-file", "extension/image/image_processor_simd.cpp"),
            ("buck-only-source", "extension/image/image_simd.cpp"),
        ),
    ),
    change(
        "moved on both sides",
        ("backends/arm/runtime/targets.bzl", '["VelaBinStream.cpp"]', '["vela/VelaBinStream.cpp"]'),
        (
            "backends/arm/CMakeLists.txt",
            "runtime/VelaBinStream.cpp",
            "runtime/vela/VelaBinStream.cpp",
        ),
        (
            "backends/arm/runtime/tests/ethos-u/CMakeLists.txt",
            "runtime/VelaBinStream.cpp",
            "runtime/vela/VelaBinStream.cpp",
        ),
        moves={
            "backends/arm/runtime/VelaBinStream.cpp": "backends/arm/runtime/vela/VelaBinStream.cpp"
        },
    ),
    change(
        "deleted on both sides",
        ("extension/training/optimizer/targets.bzl", '"sgd.cpp",', ""),
        (LISTS, '"extension/training/optimizer/sgd.cpp",', ""),
        deleted=("extension/training/optimizer/sgd.cpp",),
    ),
    change(
        "a list of build_variables.bzl for CMake alone",
        ("extension/data_loader/http_data_loader.cpp", NEW, "int a;\n"),
        (
            LISTS,
            '"extension/data_loader/mmap_data_loader.cpp",',
            (
                '"extension/data_loader/mmap_data_loader.cpp",'
                '"extension/data_loader/http_data_loader.cpp",'
            ),
        ),
        found=(("cmake-only-source", "extension/data_loader/http_data_loader.cpp"),),
    ),
    change(
        "a list of a .bzl file",
        ("extension/threadpool/pool_names.cpp", NEW, "int a;\n"),
        (
            "extension/threadpool/targets.bzl",
            "_THREADPOOL_SRCS = THREADPOOL_SRCS + (",
            '_THREADPOOL_SRCS = THREADPOOL_SRCS + ["pool_names.cpp"] + (',
        ),
        found=(("buck-only-source", "extension/threadpool/pool_names.cpp"),),
    ),
    change(
        "a file that both sides find by pattern",
        ("backends/vulkan/runtime/graph/ops/impl/Example.cpp", NEW, "int a;\n"),
        ("backends/vulkan/runtime/graph/ops/glsl/example.glsl", NEW, "void main() {}\n"),
    ),
    change(
        "a pattern that leaves a file out on one side",
        (
            "backends/qualcomm/runtime/targets.bzl",
            'exclude = ["Logging.cpp"],',
            'exclude = ["Logging.cpp", "backends/QnnOpPackageManager.cpp"],',
        ),
        found=(
            ("cmake-only-source", "backends/qualcomm/runtime/backends/QnnOpPackageManager.cpp"),
        ),
    ),
    change(
        "a source twice",
        (
            "runtime/backend/targets.bzl",
            '"interface.cpp",',
            '"interface.cpp", "interface.cpp",',
        ),
        found=(("duplicate-source", "runtime/backend/interface.cpp"),),
    ),
    change(
        "another build of the same sources",
        (
            "kernels/quantized/CMakeLists.txt",
            "# quantized_ops_lib: Register quantized ops kernels",
            "\nadd_library(quantized_again ${_quantized_kernels__srcs})\n#",
        ),
    ),
)

TARGETS = (
    change(
        "a new library for Buck alone",
        ("extension/ring/BUCK", NEW, PLAIN_BUCK),
        ("extension/ring/targets.bzl", NEW, library("ring", "ring.cpp")),
        ("extension/ring/ring.cpp", NEW, "int a;\n"),
        found=(("buck-only-source", "extension/ring/ring.cpp"),),
    ),
    change(
        "a new folder for CMake alone",
        ("backends/tpu/CMakeLists.txt", NEW, "add_library(tpu_backend Tpu.cpp)\n"),
        ("backends/tpu/Tpu.cpp", NEW, "int a;\n"),
        (
            "CMakeLists.txt",
            NEW,
            "\noption(TPU OFF)\nif(TPU)\n  add_subdirectory(backends/tpu)\nendif()\n",
        ),
        found=(("cmake-only-source", "backends/tpu", "folder"),),
    ),
    change(
        "a new library for both",
        ("extension/queue/BUCK", NEW, PLAIN_BUCK),
        ("extension/queue/targets.bzl", NEW, library("queue", "queue.cpp")),
        ("extension/queue/queue.cpp", NEW, "int a;\n"),
        ("extension/queue/CMakeLists.txt", NEW, "add_library(extension_queue queue.cpp)\n"),
        ("CMakeLists.txt", NEW, "\nadd_subdirectory(extension/queue)\n"),
    ),
    change(
        "a Buck target with another name",
        ("backends/nxp/runtime/targets.bzl", '"nxp_backend_base"', '"nxp_backend_core"'),
    ),
    change(
        "a variable in between",
        (
            "extension/llm/sampler/CMakeLists.txt",
            "add_library(extension_llm_sampler STATIC sampler.cpp)",
            "set(_srcs sampler.cpp)\nadd_library(extension_llm_sampler STATIC ${_srcs})",
        ),
    ),
    change(
        "a source that an option of CMake adds",
        ("extension/flat_tensor/tracing.cpp", NEW, "int a;\n"),
        (
            "extension/flat_tensor/CMakeLists.txt",
            NEW,
            (
                "\noption(TRACE OFF)\nif(TRACE)\n"
                "  target_sources(extension_flat_tensor PRIVATE tracing.cpp)\nendif()\n"
            ),
        ),
        found=(("cmake-only-source", "extension/flat_tensor/tracing.cpp"),),
    ),
    change(
        "a source for one platform in CMake, for all in Buck",
        ("extension/data_loader/asset.cpp", NEW, "int a;\n"),
        (
            "extension/data_loader/targets.bzl",
            '["file_data_loader.cpp"]',
            '["file_data_loader.cpp", "asset.cpp"]',
        ),
        (
            "extension/data_loader/CMakeLists.txt",
            NEW,
            "\nif(ANDROID)\n  target_sources(extension_data_loader PRIVATE asset.cpp)\nendif()\n",
        ),
        found=(("variant", "extension/data_loader/asset.cpp"),),
    ),
    change(
        "comments that name files",
        ("kernels/optimized/CMakeLists.txt", NEW, "\n# add_library(old op_old.cpp)\n"),
        ("kernels/quantized/targets.bzl", NEW, '\n# srcs = ["op_old.cpp"]\n'),
    ),
    change("prose", ("LICENSE", NEW, "\nBuild op_new.cpp with CMake.\n")),
    change(
        "a test for Buck alone",
        ("extension/pytree/test/shape_test.cpp", NEW, "int a;\n"),
        (
            "extension/pytree/test/targets.bzl",
            '"test_pytree.cpp"',
            '"test_pytree.cpp", "shape_test.cpp"',
        ),
    ),
    change(
        "Python files: one listed, one that nothing imports",
        ("backends/cortex_m/passes/listed_pass.py", NEW, "x = 1\n"),
        ("backends/cortex_m/passes/idle_pass.py", NEW, "x = 1\n"),
        (
            "backends/cortex_m/passes/BUCK",
            '"cortex_m_pass.py",',
            '"cortex_m_pass.py", "listed_pass.py",',
        ),
    ),
    change(
        "a target that is defined twice",
        (
            "extension/evalue_util/targets.bzl",
            NEW,
            '    runtime.cxx_library(name = "print_evalue")\n',
        ),
        found=(("duplicate-target", "extension/evalue_util/targets.bzl"),),
    ),
)

RELATIONS = (
    change(
        "a dependency for Buck alone",
        (
            "extension/flat_tensor/targets.bzl",
            '"//executorch/runtime/core:evalue",',
            '"//executorch/runtime/core:evalue", "//executorch/extension/tensor:tensor",',
        ),
        found=(
            (
                "dependency",
                "extension/flat_tensor/targets.bzl",
                "//extension/flat_tensor:flat_tensor_data_map -> //extension/tensor:tensor",
            ),
        ),
    ),
    change(
        "a link for CMake alone, and its header",
        (
            "backends/nxp/runtime/NeutronBackend.cpp",
            NEW,
            "\n#include <executorch/extension/threadpool/threadpool.h>\n",
        ),
        (
            "backends/nxp/CMakeLists.txt",
            NEW,
            "\ntarget_link_libraries(executorch_delegate_neutron PRIVATE extension_threadpool)\n",
        ),
        found=(
            (
                "dependency",
                "backends/nxp/runtime/targets.bzl",
                "//backends/nxp/runtime:nxp_backend_base -> //extension/threadpool:threadpool_lib",
            ),
        ),
    ),
    change(
        "a header of another library",
        (
            "extension/data_loader/file_data_loader.cpp",
            NEW,
            "\n#include <executorch/extension/tensor/tensor_ptr.h>\n",
        ),
        found=(
            (
                "dependency",
                "extension/data_loader/targets.bzl",
                "//extension/data_loader:file_data_loader -> //extension/tensor:tensor",
            ),
        ),
    ),
    change(
        "a header of another library, and the dependency",
        (
            "extension/evalue_util/print_evalue.cpp",
            NEW,
            "\n#include <executorch/extension/threadpool/threadpool.h>\n",
        ),
        (
            "extension/evalue_util/targets.bzl",
            "            deps = [",
            '            deps = ["//executorch/extension/threadpool:threadpool",',
        ),
        (
            "extension/evalue_util/CMakeLists.txt",
            "target_link_libraries(extension_evalue_util executorch_core)",
            "target_link_libraries(extension_evalue_util executorch_core extension_threadpool)",
        ),
    ),
    change(
        "a dependency taken away that sources need",
        (
            "extension/image/targets.bzl",
            '"//executorch/extension/tensor:tensor" + aten_suffix,',
            "",
        ),
        found=(
            (
                "dependency",
                "extension/image/targets.bzl",
                "//extension/image:image_processor -> //extension/tensor:tensor",
            ),
        ),
    ),
    change(
        "a header for some builds only",
        (
            "backends/mediatek/runtime/NeuronBackend.cpp",
            NEW,
            "\n#ifdef TRACE\n#include <executorch/devtools/etdump/etdump_flatcc.h>\n#endif\n",
        ),
    ),
    change(
        "a define for Buck alone",
        ("backends/arm/runtime/VelaBinStream.cpp", NEW, "\n#ifdef VELA_TRACE\n#endif\n"),
        (
            "backends/arm/runtime/targets.bzl",
            'srcs = ["VelaBinStream.cpp"],',
            'srcs = ["VelaBinStream.cpp"], preprocessor_flags = ["-DVELA_TRACE"],',
        ),
        found=(
            (
                "define",
                "backends/arm/runtime/targets.bzl",
                "//backends/arm/runtime:vela_bin_stream: VELA_TRACE",
            ),
        ),
    ),
    change(
        "a define for CMake alone",
        ("extension/llm/sampler/sampler.cpp", NEW, "\n#ifdef SAMPLER_TRACE\n#endif\n"),
        (
            "extension/llm/sampler/CMakeLists.txt",
            NEW,
            "\ntarget_compile_definitions(extension_llm_sampler PRIVATE SAMPLER_TRACE)\n",
        ),
        found=(
            (
                "define",
                "extension/llm/sampler/CMakeLists.txt",
                "extension_llm_sampler: SAMPLER_TRACE",
            ),
        ),
    ),
    change(
        "a define for both",
        ("backends/mediatek/runtime/NeuronExecutor.cpp", NEW, "\n#ifdef NEURON_TRACE\n#endif\n"),
        (
            "backends/mediatek/runtime/BUCK",
            "define_static_target = True,",
            'define_static_target = True, preprocessor_flags = ["-DNEURON_TRACE"],',
        ),
        (
            "backends/mediatek/CMakeLists.txt",
            NEW,
            "\ntarget_compile_definitions(neuron_backend PRIVATE NEURON_TRACE=1)\n",
        ),
    ),
    change(
        "a define that nothing reads",
        (
            "extension/data_loader/CMakeLists.txt",
            NEW,
            "\ntarget_compile_definitions(extension_data_loader PRIVATE NOBODY_READS_IT)\n",
        ),
    ),
    change(
        "a header that nobody lists",
        ("backends/cuda/runtime/shims/top_k.h", NEW, "#pragma once\n"),
        (
            "backends/cuda/runtime/shims/memory.cpp",
            NEW,
            "\n#include <executorch/backends/cuda/runtime/shims/top_k.h>\n",
        ),
        found=(("header", "backends/cuda/runtime/shims/top_k.h"),),
    ),
    change(
        "a header that Buck lists",
        ("extension/threadpool/thread_names.h", NEW, "#pragma once\n"),
        (
            "extension/threadpool/threadpool.cpp",
            NEW,
            "\n#include <executorch/extension/threadpool/thread_names.h>\n",
        ),
        (
            "extension/threadpool/targets.bzl",
            '"threadpool_guard.h",',
            '"threadpool_guard.h", "thread_names.h",',
        ),
    ),
    change(
        "a Python module that is imported and not in the deps",
        (
            "backends/qualcomm/partition/utils.py",
            NEW,
            "\nfrom executorch.backends.nxp.neutron_partitioner import NeutronPartitioner\n",
        ),
        found=(("dependency", "backends/qualcomm/partition/utils.py"),),
    ),
    change(
        "a Python module that is imported and not listed",
        ("backends/cortex_m/passes/fold_pass.py", NEW, "x = 1\n"),
        (
            "backends/cortex_m/passes/cortex_m_pass_manager.py",
            NEW,
            "\nfrom executorch.backends.cortex_m.passes.fold_pass import x\n",
        ),
        found=(("unlisted-file", "backends/cortex_m/passes/fold_pass.py"),),
    ),
)

TENSOR = "//extension/tensor:tensor"
MODULE = "//extension/module:module"
POOL = "//extension/threadpool:threadpool_lib"

# Dependencies and defines that both sides of main have, each taken from one side; with what only
# these exported.
REMOVALS = (
    change(
        "Buck: a library that a source includes",
        (
            "extension/module/targets.bzl",
            '"//executorch/extension/flat_tensor:flat_tensor_data_map" + aten_suffix,',
            "",
        ),
        found=(
            (
                "dependency",
                "extension/module/targets.bzl",
                f"{MODULE} -> //extension/flat_tensor:flat_tensor_data_map",
            ),
        ),
    ),
    change(
        "Buck: a library that a backend includes",
        ("backends/xnnpack/targets.bzl", '"//executorch/extension/threadpool:threadpool",', ""),
        found=(
            (
                "dependency",
                "backends/xnnpack/targets.bzl",
                f"//backends/xnnpack:xnnpack_backend -> {POOL}",
            ),
        ),
    ),
    change(
        "Buck: a library for CUDA",
        ("backends/cuda/runtime/targets.bzl", '"//executorch/extension/cuda:caller_stream",', ""),
        found=(
            (
                "dependency",
                "backends/cuda/runtime/targets.bzl",
                "//backends/cuda/runtime:cuda_allocator -> //extension/cuda:runtime_api",
            ),
            (
                "dependency",
                "backends/cuda/runtime/targets.bzl",
                "//backends/cuda/runtime:cuda_allocator -> //extension/cuda:caller_stream",
            ),
        ),
    ),
    change(
        "Buck: an exported dependency",
        (
            "extension/training/module/targets.bzl",
            '"//executorch/extension/module:module" + aten_suffix,',
            "",
        ),
        found=(
            (
                "dependency",
                "extension/training/module/targets.bzl",
                (
                    "//extension/training/module:training_module -> "
                    "//runtime/executor:program_no_prim_ops"
                ),
            ),
            (
                "dependency",
                "extension/training/module/targets.bzl",
                f"//extension/training/module:training_module -> {MODULE}",
            ),
        ),
    ),
    change(
        "Buck: a header of the same folder's library",
        (
            "extension/flat_tensor/targets.bzl",
            '"//executorch/extension/flat_tensor/serialize:flat_tensor_header",',
            "",
        ),
        found=(
            (
                "dependency",
                "extension/flat_tensor/targets.bzl",
                "//extension/flat_tensor:flat_tensor_data_map -> //runtime/core:named_data_map",
            ),
            (
                "dependency",
                "extension/flat_tensor/targets.bzl",
                "//extension/flat_tensor:flat_tensor_data_map -> //runtime/core:tensor_layout",
            ),
            (
                "dependency",
                "extension/flat_tensor/targets.bzl",
                (
                    "//extension/flat_tensor:flat_tensor_data_map -> "
                    "//extension/flat_tensor/serialize:flat_tensor_header"
                ),
            ),
        ),
    ),
    change(
        "Buck: an outside library",
        ("backends/xnnpack/targets.bzl", 'third_party_dep("XNNPACK"),', ""),
        found=(("dependency", "backends/xnnpack/CMakeLists.txt", "xnnpack_backend -> XNNPACK"),),
    ),
    change(
        "Buck: a library of headers",
        (
            "extension/module/targets.bzl",
            '"//executorch/extension/memory_allocator:malloc_memory_allocator",',
            "",
        ),
        found=(
            (
                "dependency",
                "extension/module/targets.bzl",
                f"{MODULE} -> //extension/memory_allocator:malloc_memory_allocator",
            ),
        ),
    ),
    change(
        "CMake: a link of a library",
        (
            "extension/image/CMakeLists.txt",
            "PUBLIC executorch_core extension_tensor",
            "PUBLIC executorch_core",
        ),
        found=(
            (
                "dependency",
                "extension/image/targets.bzl",
                f"//extension/image:image_processor -> {TENSOR}",
            ),
        ),
    ),
    change(
        "CMake: a link of a runner",
        (
            "extension/llm/runner/CMakeLists.txt",
            "extension_module extension_tensor",
            "extension_tensor",
        ),
        found=(("dependency", "extension/llm/runner/targets.bzl"),),
    ),
    change(
        "Buck: an exported define",
        ("extension/threadpool/targets.bzl", '"-DET_USE_THREADPOOL",', ""),
        found=(
            (
                "define",
                "extension/threadpool/CMakeLists.txt",
                "extension_threadpool: ET_USE_THREADPOOL",
            ),
        ),
    ),
    change(
        "Buck: a define",
        ("extension/cuda/targets.bzl", '"-DEXECUTORCH_EXTENSION_CUDA_BUILDING",', ""),
        found=(
            (
                "define",
                "extension/cuda/CMakeLists.txt",
                "extension_cuda: EXECUTORCH_EXTENSION_CUDA_BUILDING",
            ),
        ),
    ),
    change(
        "Buck: a define that a header of another library reads",
        ("backends/arm/runtime/targets.bzl", '"-DUSE_VULKAN_VOLK",', ""),
        found=(("define", "backends/arm/CMakeLists.txt", "vgf_backend: USE_VULKAN_VOLK"),),
    ),
)

OTHER_REMOVALS = (
    change(
        "CMake: an exported define",
        ("extension/threadpool/CMakeLists.txt", "PUBLIC ET_USE_THREADPOOL ", "PUBLIC "),
        found=(
            ("define", "extension/threadpool/targets.bzl", f"{POOL}: ET_USE_THREADPOOL"),
            ("define", "examples/models/gemma3/targets.bzl"),
            ("define", "examples/models/gemma4/targets.bzl"),
        ),
    ),
    change(
        "CMake: a define",
        ("extension/cuda/CMakeLists.txt", "PRIVATE EXECUTORCH_EXTENSION_CUDA_BUILDING", "PRIVATE"),
        found=(
            (
                "define",
                "extension/cuda/targets.bzl",
                "//extension/cuda:caller_stream: EXECUTORCH_EXTENSION_CUDA_BUILDING",
            ),
        ),
    ),
    change(
        "CMake: a define that a test with the same source keeps",
        (
            "backends/arm/CMakeLists.txt",
            "vgf_backend PRIVATE -DUSE_VULKAN_WRAPPER -DUSE_VULKAN_VOLK",
            "vgf_backend PRIVATE -DUSE_VULKAN_WRAPPER",
        ),
        found=(
            (
                "define",
                "backends/arm/runtime/targets.bzl",
                "//backends/arm/runtime:vgf_backend: USE_VULKAN_VOLK",
            ),
        ),
    ),
)

BROKEN = (
    change(
        "a syntax error in Starlark",
        ("kernels/prim_ops/targets.bzl", NEW, "\ndef (\n"),
        found=(("unread-file", "kernels/prim_ops/targets.bzl"),),
    ),
    change(
        "a parenthesis too many in CMake",
        ("backends/vulkan/CMakeLists.txt", NEW, "\nset(x (\n"),
        found=(("unread-file", "backends/vulkan/CMakeLists.txt"),),
    ),
    change(
        "a load of what is not there",
        ("extension/pytree/BUCK", LOAD[:-1], LOAD + 'load(":missing.bzl", "missing")'),
        found=(("unread-file", "extension/pytree/BUCK"),),
    ),
    change(
        "add_subdirectory() of what is not there",
        ("extension/flat_tensor/CMakeLists.txt", NEW, "\nadd_subdirectory(not_there)\n"),
        found=(("unread-file", "extension/flat_tensor/CMakeLists.txt"),),
    ),
)

GROUPS = {
    "sources": SOURCES,
    "targets": TARGETS,
    "relations": RELATIONS,
    "removals": REMOVALS,
    "other removals": OTHER_REMOVALS,
    "broken": BROKEN,
}
