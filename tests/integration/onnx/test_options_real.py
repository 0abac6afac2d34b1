"""The table of options against the execution provider that is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ci.onnx.options import installed_version, read_options
from provisioning.manifest.targets import name_socs, read_all_socs, read_socs
from provisioning.versions import is_older

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import onnx
import onnxruntime.capi
import onnxruntime_qnn

from tests.qnn_provider.asking import SOC, STRICT, ask, ask_process
from tests.qnn_provider.models import tensor, write_conv, write_model, write_relu

TAKEN = re.compile(r"User specified ep\.qnnexecutionprovider\.(\w+): (\S+)")
INVALID = re.compile(r"Invalid value for ep\.qnnexecutionprovider\.(\w+) \(2\)\. Only 0 or 1")
WORDS = re.compile(rb"(?<=\0)[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?=\0)")
ENTRIES = re.compile(rb"(?<=\0)(?:ep|session|optimization|memory|mlas)\.[a-z0-9_.]+(?=\0)")

# What looks like an option in the provider's library and is none, and why.
NOT_OPTIONS = {
    "attributes of ONNX operators": """align_corners auto_pad block_size center_point_box
        coordinate_transformation_mode count_pad_for_edges cubic_coeff cubic_coeff_a
        exclude_outside filter_size interpolation_mode k_quant_type keep_dims kv_cache_bit_width
        linear_before_re local_window_size nearest_mode new_axes_mask noop_with_empty_axes
        num_groups num_heads off_value on_value output_padding pad_amount pad_constant_value
        pytorch_half_pixel qk_output rotary_interleaved round_prefer_ceil round_prefer_floor
        rounding_mode smooth_softmax transpose_in0 transpose_in1 v_quant_type""",
    "parameters of QNN operators": """cell_gate_qscale forget_gate_qscale hidden_state_offset
        hidden_state_qscale input_gate_qscale output_gate_qscale slice_param""",
    "attributes of an EPContext node": """ep_cache_context ep_context_type ep_sdk_version
        io_name_overrides is_multi_soc_ep_context main_context max_size partition_name""",
    "keys of the JSON that the provider writes": """compilation_target converter_command
        copyright_str data_type dst_name dst_qnn_op_type fusion_count graph_name input_names
        macs_per_inference node_group_type num_initializers num_inputs op_mappings op_types
        output_names qnn_subgraphs quant_params scalar_params src_axis_format subgraph_traces
        tensor_mappings tensor_params total_graph_size_bytes total_graph_size_mb
        total_initializer_size_bytes total_input_size_bytes total_onnx_nodes total_qnn_ops
        unsupported_nodes used_by_operators""",
    "values of options": """critical_plus extreme_power_saver high_plus high_power_saver
        low_balanced low_power_saver normal_high normal_low sustained_high_performance""",
    "not of a session: set while a Genie model runs": "kvcache_rewind",
    "types and errors of libraries inside": """narrowing_error out_of_range type_error uint16_t
        uint2_t uint32_t uint4_t uint64_t uint8_t""",
    "functions of the C library and the compiler": """deregister_tm_clones frame_dummy
        pthread_mutex_lock pthread_mutex_unlock pthread_once pthread_rwlock_rdlock
        pthread_rwlock_unlock pthread_rwlock_wrlock pthread_self""",
    "code that reads as text": "h_8 p_8 x_8",
}

# A wrong value a row, and whether a session comes of it: what "wrong" of the table says.
WRONG_VALUES = {
    "backend_path": "/no/where/libQnnHtp.so",
    "backend_type": "npu",
    "soc_model": "SM8750",
    "htp_arch": "v79",
    "device_id": "7",
    "vtcm_mb": "eight",
    "htp_performance_mode": "fast",
    "htp_graph_finalization_optimization_mode": "4",
    "enable_htp_spill_fill_buffer": "2",
    "htp_share_resource_optimization": "0",
    "qnn_context_priority": "highest",
    "rpc_control_latency": "fast",
    "profiling_level": "medium",
    "profiling_file_path": "/no/where/profile.csv",
    "qnn_saver_path": "/no/where.so",
    "json_qnn_graph_dir": "/proc/nothing",
    "framework_op_trace_dir": "/proc/nothing",
    "op_packages": "a:b",
    "num_graph_prepare_threads": "none",
    "disable_file_mapped_weights": "2",
}
WITH = {
    "backend_path": {"backend_type": ""},
    "profiling_file_path": {"profiling_level": "basic"},
    "json_qnn_graph_dir": {"dump_json_qnn_graph": "1"},
    "framework_op_trace_dir": {"enable_framework_op_trace": "1"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_relu(tmp_path_factory.mktemp("options") / "relu.onnx")


@pytest.fixture(scope="module")
def library() -> bytes:
    return Path(onnxruntime_qnn.get_library_path()).read_bytes()


@pytest.fixture(scope="module")
def answers(model: Path) -> dict[str, dict[str, Any]]:
    """What the provider did with nothing, with every switch at 2, and with each wrong value."""
    switches = {row.name: "2" for row in read_options().provider if row.kind == "switch"}
    options_by_name: dict[str, dict[str, str]] = {"nothing": {}, "switches": switches}
    options_by_name |= {
        name: {**WITH.get(name, {}), name: value} for name, value in WRONG_VALUES.items()
    }
    requests = [
        {"model": str(model), "options": {**SOC, **options}, "entries": STRICT}
        for options in options_by_name.values()
    ]
    return dict(zip(options_by_name, ask(requests), strict=True))


def test_every_provider_option_of_the_table_is_a_string_in_the_library(library: bytes) -> None:
    table, version = read_options(), installed_version()
    for row in (*table.provider, *table.run):
        is_present = not (row.since and is_older(version, row.since))
        assert (row.name.encode() in library) == is_present, row.name
        for value in row.values if is_present else ():
            assert len(value) < 7 or value.encode() in library, (row.name, value)
    assert b"qnn.perf_mode" not in library


def test_every_provider_option_in_the_library_is_in_the_table(library: bytes) -> None:
    words_of_library = {word.decode() for word in WORDS.findall(library)}
    table_names = {row.name for row in read_options().provider}
    ignored = {word for words in NOT_OPTIONS.values() for word in words.split()}
    assert not table_names & ignored
    assert words_of_library - ignored <= table_names
    assert ignored <= words_of_library, "the provider has lost some of these"


def test_the_table_of_session_entries_agrees_with_onnxruntime() -> None:
    folder = Path(onnxruntime.capi.__file__).parent
    (binary,) = folder.glob("onnxruntime_pybind11_state*.so")
    libraries = binary.read_bytes() + Path(onnxruntime_qnn.get_library_path()).read_bytes()
    entries_of_library = {word.decode() for word in ENTRIES.findall(libraries)}
    table = read_options()
    table_names = {row.name for row in table.session} | set(table.others)
    # The compiler keeps the last four letters of one of them elsewhere.
    assert [
        name for name in table_names if name.removesuffix("path").encode() not in libraries
    ] == []
    elsewhere = ("ep.cuda", "ep.dynamic")  # of another provider, and not of a session
    assert {
        name
        for name in entries_of_library - table_names
        if not name.startswith(elsewhere) and name[-1] != "."
    } == set()


def test_option_defaults_agree_with_the_providers_log(answers: dict[str, dict[str, Any]]) -> None:
    logged = dict(TAKEN.findall(answers["nothing"]["log"]))
    rows = {row.name: row.default for row in read_options().provider}
    assert logged == {name: rows.get(name) for name in logged}
    switches = {
        row.name for row in read_options().provider if row.kind == "switch" and row.source == "log"
    }
    assert switches <= logged.keys()


def test_a_switch_that_is_neither_0_nor_1_is_ignored(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["switches"]
    assert answer["session"], answer["error"]
    rows = {row.name: row for row in read_options().provider}
    ignored = set(INVALID.findall(answer["log"]))
    assert ignored >= {
        name
        for name, row in rows.items()
        if row.source == "log"
        and not row.values
        and row.kind == "switch"
        and row.name != "enable_htp_prepare_only"
    }
    assert all(rows[name].wrong == "ignored" for name in ignored)


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_option_value_fails_or_warns_as_the_table_says(
    name: str, answers: dict[str, dict[str, Any]]
) -> None:
    (row,) = (row for row in read_options().provider if row.name == name)
    answer = answers[name]
    assert answer["session"] == (row.wrong != "session"), answer["error"]
    warnings = _warnings(answer) - _warnings(answers["nothing"])
    assert bool(warnings) == (row.wrong == "warned") or row.wrong == "session", warnings


def _warnings(answer: dict[str, Any]) -> set[str]:
    return set(re.findall(r"\[[WE]:onnxruntime:.*", answer["log"]))


def test_saver_refuses_what_htp_refuses_and_makes_no_context(tmp_path: Path) -> None:
    library = Path(onnxruntime_qnn.get_library_path()).with_name("libQnnSaver.so")
    saving = {**SOC, "qnn_saver_path": str(library)}
    context = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "context.onnx")}
    requests = []
    for rank in (4, 5):
        form = (2,) * rank
        node = onnx.helper.make_node("Log", ["x"], ["y"], "n0")
        path = tmp_path / f"log{rank}.onnx"
        model = write_model(path, [node], [tensor("x", form)], [tensor("y", form)])
        requests += [
            {"model": str(model), "options": options, "entries": STRICT}
            for options in (SOC, saving)
        ]
    requests.append({**requests[1], "entries": context})
    answers = ask(requests, cwd=tmp_path)
    assert [answer["session"] for answer in answers] == [True, True, False, False, False]
    assert all("with error code 3110" in answer["log"] for answer in answers[2:4])
    assert "QNN error handle: 4950" in answers[4]["error"]
    assert (tmp_path / "saver_output" / "saver_output.c").is_file()


def test_a_wrong_rpc_control_latency_kills_the_process(model: Path) -> None:
    (row,) = (row for row in read_options().run if row.name == "qnn.rpc_control_latency")
    assert row.wrong == "killed"
    request = {"model": str(model), "options": SOC, "run": {row.name: "x"}}
    ended = ask_process([request])
    assert ended.returncode == -6


@pytest.mark.nightly
def test_qnn_compiles_a_context_for_every_soc_of_the_table(tmp_path: Path) -> None:
    model = write_conv(tmp_path / "conv.onnx")
    other_socs = {name: read_all_socs()[name] for name in name_socs().values()}
    for name, soc in other_socs.items():
        if name in read_socs() or not soc.hexagon:
            continue
        target = tmp_path / f"{name}.onnx"
        entries = {"ep.context_enable": "1", "ep.context_embed_mode": "1"}
        entries["ep.context_file_path"] = str(target)
        options = {"backend_type": "htp", "soc_model": str(soc.id)}
        ask([{"model": str(model), "options": options, "entries": entries}])
        soc_line = re.search(
            rb"soc_type=([^;]*);arch=(\d+);.*?vtcm_size=(\d+)", target.read_bytes()
        )
        assert soc_line
        assert soc_line[1].decode() == name
        # For some SoCs with V69 or V73, QNN chooses the operators of V68.
        assert int(soc_line[2]) in {soc.hexagon, 68}
        assert int(soc_line[3]) >> 20 == soc.vtcm_mb
