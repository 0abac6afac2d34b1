"""Options that contradict each other, or do nothing without another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from ci.onnx.option_table import Option, OptionTable, read_options
from provisioning.manifest.socs import Soc, read_socs

OFF = ("", "0", "off")
BF16_SOC = 88  # the EP's own limit
UDMA_HEXAGON = 81  # error 6007 with V75 and V79, none with V81


def find_conflicts(options: Mapping[str, str], entries: Mapping[str, str]) -> Iterator[str]:
    """Faults in provider options and session entries whose values are right one by one."""
    table = read_options()
    given = {**options, **entries}
    for option in (*table.provider, *table.session):
        if option.name in given:
            yield from _find_lacks(option, given)
    yield from _find_soc_faults(options, table)
    yield from _find_sharing_faults(given)
    if _is_on(given, "offload_graph_io_quantization") and _is_on(
        given, "session.disable_cpu_ep_fallback"
    ):
        yield (
            "offload_graph_io_quantization=1 puts nodes on the CPU, which"
            " session.disable_cpu_ep_fallback=1 forbids: the provider switches it off"
        )


def _is_on(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "") not in OFF


def _find_lacks(option: Option, given: Mapping[str, str]) -> Iterator[str]:
    value = given[option.name]
    if value in OFF:
        return
    shown = f"{option.name}={value}"
    backend = find_backend(given)
    if option.backends and backend not in option.backends:
        yield f"{shown} does nothing on the backend {backend}: it is for {option.backends[0]}"
    if option.where:
        yield f"{shown} does nothing here: it is for {option.where}"
    for need in option.needs:
        name, _, values = need.partition("=")
        if not _is_on(given, name) or (values and given[name] not in values.split("|")):
            yield f"{shown} does nothing without {need.replace('|', ' or ')}"
    for other in option.excludes:
        if _is_on(given, other):
            yield f"{shown} cannot be given together with {other}"


def find_backend(options: Mapping[str, str]) -> str:
    """``htp``, ``gpu`` ... by backend_type, or the name of the library; else in lower case."""
    if "backend_path" in options:
        stem = PurePath(options["backend_path"]).name.split(".")[0]
        return stem.removeprefix("lib").removeprefix("Qnn").lower()
    return options.get("backend_type", "htp")


def _find_soc_faults(options: Mapping[str, str], table: OptionTable) -> Iterator[str]:
    lists = {
        name: options[name].split(",")
        for name in ("soc_model", "htp_arch", "vtcm_mb")
        if _is_on(options, name)
    }
    many = max((len(values) for values in lists.values()), default=0)
    for name, values in lists.items():
        if len(values) != many and (name != "vtcm_mb" or len(values) > 1):
            yield f"{name} has {len(values)} values where another option has {many}"
            return
    by_id = {soc.id: (name, soc) for name, soc in {**read_socs(), **table.socs}.items()}
    for place, text in enumerate(lists.get("soc_model", ())):
        found = by_id.get(int(text))
        if found is None:
            known = ", ".join(f"{soc.id} {name}" for name, soc in sorted(read_socs().items()))
            yield f"soc_model={text}: no SoC with an HTP has this number; known: {known}"
        else:
            own = {name: values[place % len(values)] for name, values in lists.items()}
            yield from _find_contradictions(options, own, *found)


def _find_contradictions(
    options: Mapping[str, str], own: Mapping[str, str], name: str, soc: Soc
) -> Iterator[str]:
    arch, vtcm = int(own.get("htp_arch", 0)), int(own.get("vtcm_mb", 0))
    if arch and arch != soc.hexagon:
        yield f"htp_arch={arch} contradicts soc_model={soc.id}: {name} has V{soc.hexagon}"
    if vtcm > soc.vtcm_mb:
        yield f"vtcm_mb={vtcm} is more than {name} (soc_model={soc.id}) has: {soc.vtcm_mb} MB"
    if _is_on(options, "htp_bf16_enable") and soc.id < BF16_SOC:
        yield f"htp_bf16_enable=1 needs a soc_model of {BF16_SOC} or more, {soc.id} is {name}"
    if _is_on(options, "extended_udma") and soc.hexagon < UDMA_HEXAGON:
        yield f"extended_udma=1 needs V{UDMA_HEXAGON}, {name} ({soc.id}) has V{soc.hexagon}"


def _find_sharing_faults(given: Mapping[str, str]) -> Iterator[str]:
    several = any("," in given.get(name, "") for name in ("soc_model", "htp_arch"))
    embedded = given.get("ep.context_embed_mode") == "1"
    if several and not _is_on(given, "ep.context_enable"):
        yield "several SoCs are for a context binary alone: they need ep.context_enable=1"
    for name in ("ep.share_ep_contexts", "htp_share_resource_optimization"):
        if embedded and _is_on(given, name):
            yield f"{name}=1 cannot share a context that ep.context_embed_mode=1 puts in the model"
    if several and _is_on(given, "ep.share_ep_contexts"):
        yield "ep.share_ep_contexts=1 is for one SoC, several are given"
