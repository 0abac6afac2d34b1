"""Provider options, session entries and run options, before any session is made."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ci.models.schemes import Scheme
from ci.onnx.options import (
    Option,
    check_options,
    check_sessions,
    choose_options,
    find_backend,
    find_conflicts,
    hash_option_files,
    parse_options,
    read_options,
)
from provisioning.errors import UsageError
from provisioning.files import hash_file
from tests.stand_ins.snapshots import check_results, check_snapshot, try_call

SNAPSHOTS = Path(__file__).with_name("snapshots")

HTP = {"backend_type": "htp", "soc_model": "69"}
CONTEXT = {"ep.context_enable": "1"}
EMBEDDED = {**CONTEXT, "ep.context_embed_mode": "1"}
STRICT = {"session.disable_cpu_ep_fallback": "1"}

PROVIDER, SESSION = read_options().provider, read_options().session
OPTIONS = [*PROVIDER, *SESSION]
# By kind: a value that no option takes, and one that most take.
REFUSED = {
    "switch": "2",
    "choice": "quux",
    "number": "-1",
    "file": "/no/where/libx.so",
    "directory": "/no/where",
    "text": "",
}
TAKEN = {"switch": "1", "number": "1", "file": "libQnnHtp.so", "directory": "."}


def take(option: Option) -> dict[str, str]:
    value = option.values[-1] if option.values else TAKEN.get(option.kind, option.example or "x")
    return {option.name: "1" if option.least else value}


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.backends], ids=lambda option: option.name
)
def test_an_option_is_for_each_of_its_backends_and_for_no_other(option: Option) -> None:
    conflict_text = "has no effect on the backend"
    for backend in (*option.backends, "quux"):
        provider_options = {**take(option), "backend_path": f"libQnn{backend.capitalize()}.so"}
        conflicts = [
            conflict
            for conflict in find_conflicts(provider_options, {})
            if conflict.startswith(option.name)
        ]
        assert any(conflict_text in conflict for conflict in conflicts) is (backend == "quux"), (
            conflicts
        )


# Provider options and session entries that are wrong.
WRONG: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"HTP_PERFORMANCE_MODE": "burst"}, {}),
    ({"enable_fp16_precision": "1"}, {}),
    ({"quux": "1"}, {}),
    ({"ep.context_enable": "1"}, {}),
    ({"qnn.htp_perf_mode": "burst"}, {}),
    ({}, {"ep.context_enabled": "1"}),
    ({}, {"session.intra_op.allow_spining": "1"}),
    ({}, {"vtcm_mb": "8"}),
    ({}, {"ep.qnnexecutionprovider.vtcm_mb": "8"}),
    ({"htp_performance_mode": "brust"}, {}),
    ({"htp_performance_mode": "BRUST"}, {}),
    ({"htp_performance_mode": "fast"}, {}),
    ({"htp_arch": "SM8750"}, {}),
    ({"soc_model": "SM8750"}, {}),
    ({"soc_model": "sm8650"}, {}),
    ({"soc_model": "69x"}, {}),
    ({"soc_model": "٦٩"}, {}),
    ({"soc_model": "57,"}, {}),
    ({"device_id": "1"}, {}),
    ({"op_packages": "a:b"}, {}),
    ({"op_packages": "a:b:c,"}, {}),
    ({"num_graph_prepare_threads": "0"}, {}),
    ({"backend_path": "QnnHtp"}, {}),
    ({"backend_path": "libQnnHtp.so.2"}, {}),
    ({"soc_model": "1234"}, {}),
    ({"soc_model": "21"}, {}),
    ({"soc_model": "69", "htp_arch": "75"}, {}),
    ({"soc_model": "69", "vtcm_mb": "9"}, {}),
    ({"soc_model": "88", "vtcm_mb": "16"}, {}),
    ({"soc_model": "87", "htp_bf16_enable": "1"}, {}),
    ({"soc_model": "69", "extended_udma": "1"}, {}),
    ({"soc_model": "0", "enable_htp_fp16_precision": "1"}, {}),
    ({"profiling_level": "off", "profiling_file_path": "p.csv"}, {}),
    ({"dump_json_qnn_graph": "0", "json_qnn_graph_dir": "."}, {}),
    ({"backend_type": "gpu", "vtcm_mb": "4"}, {}),
    ({"backend_path": "libQnnSaver.so", "soc_model": "69"}, {}),
    ({"genie_log_level": "info"}, {}),
    ({"soc_model": "57,69"}, {}),
    ({"htp_arch": "75,79"}, {"ep.context_enable": "0"}),
    ({"htp_arch": "75,79"}, {**CONTEXT, "ep.share_ep_contexts": "1"}),
    ({"soc_model": "57,69", "htp_arch": "75"}, CONTEXT),
    ({"soc_model": "57,69", "htp_arch": "75,75"}, CONTEXT),
    ({"soc_model": "57,93", "vtcm_mb": "8"}, CONTEXT),
    ({"soc_model": "57,69"}, {**CONTEXT, "ep.share_ep_contexts": "1"}),
    ({"soc_model": "57,69,87", "vtcm_mb": "4,8"}, CONTEXT),
    ({}, {**EMBEDDED, "ep.share_ep_contexts": "1"}),
    ({"htp_share_resource_optimization": "1"}, EMBEDDED),
    ({"offload_graph_io_quantization": "1"}, STRICT),
    ({"vtcm": "8", "soc_model": "x"}, {"ep.context_embed_mode": "3"}),
]
ADVICE = """
  why: the provider ignores most options that it does not understand, without an error
  fix: correct them; docs/reference/onnx.md lists every option with its values"""
# Of a case: provider options beside --profile and --saver.
CLASHING: list[tuple[dict[str, str], str, bool]] = [
    ({"profiling_level": "basic"}, "detailed", False),
    ({"profiling_file_path": "a.csv"}, "basic", False),
    ({"qnn_saver_path": "libQnnSaver.so"}, "", False),
    ({"dump_qnn_ir_dlc": "1"}, "", True),
    ({"enable_htp_prepare_only": "1"}, "", False),
]


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.onnx.options.installed_version", lambda: "2.5.0")


def test_invalid_provider_options_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Each option has an impossible value, or a possible one without the option that it needs."""
    calls = {
        f"{options} {entries}": partial(check_options, options, entries)
        for options, entries in WRONG
    }
    for option in OPTIONS:
        for choices in ({option.name: REFUSED[option.kind]}, take(option)):
            is_entry = "." in option.name
            call = partial(check_options, {} if is_entry else choices, choices if is_entry else {})
            if try_call(call) != "None":
                calls[f"{choices}"] = call
        for excluded_name in option.excludes:
            (excluded,) = (option for option in OPTIONS if option.name == excluded_name)
            excluding = {**take(excluded), **take(option)}
            entries = {name: excluding.pop(name) for name in [*excluding] if "." in name}
            calls[f"{excluding} {entries}"] = partial(check_options, excluding, entries)
    for words in (["a"], ["=b"], ["a=1", "a=2"]):
        calls[f"{words}"] = partial(parse_options, words)
    calls["words"] = partial(
        parse_options, ["vtcm_mb", "=1", "soc_model=69", "soc_model=57", "vtcm_mb=x"]
    )
    for options, profile, saver in CLASHING:
        htp_options = {**HTP, **options}
        calls[f"{options} {profile} {saver}"] = partial(
            check_sessions, htp_options, profile, saver=saver
        )
    check_results(SNAPSHOTS / "options.txt", calls, tmp_path, ADVICE)


@pytest.mark.parametrize(
    ("backend", "options", "entries"),
    [
        ("htp", {}, {}),
        ("htp", {"backend_path": "libQnnHtp.so", "soc_model": "69", "htp_arch": "79"}, {}),
        ("htp", {"soc_model": "0", "htp_arch": "0", "vtcm_mb": "0", "device_id": "0"}, {}),
        ("htp", {"soc_model": "88", "htp_bf16_enable": "1", "extended_udma": "1"}, {}),
        ("htp", {"soc_model": "87", "extended_udma": "1"}, {}),
        ("htp", {"profiling_level": "detailed", "profiling_file_path": "profile.csv"}, {}),
        ("htp", {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": "."}, {}),
        ("htp", {"op_packages": "A:liba.so:I,B:/b/libb.so:I:CPU"}, {}),
        ("htp", HTP, {**EMBEDDED, "ep.context_file_path": "m_ctx.onnx"}),
        ("htp", HTP, {**CONTEXT, "ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"}),
        ("htp", {"soc_model": "57,69", "htp_arch": "75,79", "vtcm_mb": "8"}, CONTEXT),
        ("saver", {"backend_type": "saver"}, {}),
        ("htp", {**HTP, "offload_graph_io_quantization": "1"}, {**STRICT, next(iter(STRICT)): "0"}),
        ("gpu", {"backend_path": "/a.b/libQnnGpu.so"}, {}),
    ],
)
def test_valid_provider_options_are_accepted(
    backend: str, options: dict[str, str], entries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    check_options(options, entries)
    assert find_backend(options) == backend


def test_an_option_that_the_provider_does_not_have_yet_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = {"enable_htp_graph_splitting": "1"}
    with pytest.raises(UsageError, match=r"needs onnxruntime-qnn 2\.6\.0, but 2\.5\.0 is"):
        check_options(later)
    for version in ("2.6.0", "2.10.0", "10.0.0"):
        monkeypatch.setattr("ci.onnx.options.installed_version", partial(str, version))
        check_options(later)


def test_options_that_name_files_or_directories_require_them_to_exist(tmp_path: Path) -> None:
    library = tmp_path / "libQnnHtp.so"
    with pytest.raises(UsageError, match="no such file"):
        check_options({"backend_path": str(library)})
    library.touch()
    check_options({"backend_path": str(library)})
    with pytest.raises(UsageError, match="not a regular file"):
        check_options({"backend_path": str(tmp_path)})
    graphs = {"dump_json_qnn_graph": "1"}
    with pytest.raises(UsageError, match="no such directory"):
        check_options({**graphs, "json_qnn_graph_dir": str(library)})
    (tmp_path / "a=b").mkdir()
    words = [f"json_qnn_graph_dir={tmp_path}/a=b"]  # a value may have another equals sign
    assert parse_options(words) == {"json_qnn_graph_dir": f"{tmp_path}/a=b"}
    with pytest.raises(UsageError, match="a file in an existing directory"):
        check_options({}, {**CONTEXT, "ep.context_file_path": str(tmp_path)})
    with pytest.raises(UsageError, match="allowed: a file"):
        check_options({"backend_path": "a\0b"})


def test_files_that_a_compilation_reads_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it writes, files of the SDK and missing files are not hashed."""
    monkeypatch.chdir(tmp_path)
    for name in ("libB.so", "libQnnHtp.so"):  # the SDK's are meant, not these
        (tmp_path / name).touch()
    files = [tmp_path / f"lib{name}.so" for name in ("backend", "one", "two", "made")]
    for file in files:
        file.write_text(file.name)
    backend, first, second, written = map(str, files)
    packages = f"A:{first}:I:CPU,B:libB.so:I,C:{tmp_path}/gone.so:I,D:{second}:I"
    provider_options = {
        "op_packages": packages,
        "backend_path": backend,
        "profiling_file_path": written,
    }
    assert hash_option_files(provider_options) == [
        hash_file(Path(file)) for file in (backend, first, second)
    ]
    assert hash_option_files({"backend_path": "libQnnHtp.so"}) == hash_option_files({}) == []


def test_options_of_a_case_are_those_of_its_soc_and_scheme() -> None:
    lines = [
        f"{scheme.value} {soc} {choose_options(scheme, soc, user_options)}"
        for scheme in (Scheme.FP16, Scheme.U8, Scheme.U16A8W)
        for soc in ("SM8650", "SM8750", "QCM6490")
        for user_options in (
            {},
            {"vtcm_mb": "4", "soc_model": "0"},
            {"offload_graph_io_quantization": "1"},
        )
    ]
    check_snapshot(SNAPSHOTS / "chosen.txt", "".join(f"{line}\n" for line in lines))
