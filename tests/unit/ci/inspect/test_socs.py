"""Which lanes support an SoC."""

from __future__ import annotations

import pytest

from ci.__main__ import main
from ci.inspect.socs import answer_soc, is_too_old, render_soc
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import find_any_soc, read_all_socs

ROWS = {
    # asked: name, supported by ExecuTorch, ONNX and LiteRT, and the nearest sibling
    "SA8775P": ("SA8255", (True, True, True), "QCS9100"),
    "sa8775": ("SA8775", (True, True, True), "QCS9100"),
    "QCS6490": ("QCM6490", (True, True, True), "SM8350"),
    "SM7435": ("SM7435", (False, True, True), "SSG2115P"),
    "SM8975": ("SM8975", (False, True, False), ""),  # no V85 in ExecuTorch
    "SDM865": ("SDM865", (False, False, False), ""),  # no HTP
    "IPQ5404": ("IPQ5404", (False, False, False), ""),  # QNN does not know the number
    "SM8750": ("SM8750", (True, True, True), "SXR2330P"),
}
SPELLINGS = {
    "sm_8750": "SM8750",
    "SM 8450": "SM8450",
    "SM8650-AB": "SM8650",
    "sm7325-1-af": "SM7325",
    "8 Gen 3": "SM8650",
    "Snapdragon® 8 Elite": "SM8750",
    "snapdragon(tm) 8 gen 2 for galaxy": "SM8550",
    "Qualcomm Snapdragon 8+ Gen 1 Mobile Platform": "SM8475",
    "Snapdragon 8 Elite Gen5": "SM8850",
    "snapdragon-x-elite": "SC8380XP",
    "QCS-6490": "QCM6490",
    "57": "SM8650",  # QNN's number
    "Snapdragon 8 Gen 2 (SM8550)": "SM8550",
    "X1E80100": "SC8380XP",
    "Snapdragon(R) X Elite - X1E78100 - Qualcomm(R) Oryon(TM) CPU": "SC8380XP",
    "snapdragon 888": "SM8350",
    "Dragonwing QCS6490": "QCM6490",
    "IQ-9075": "QCS9075",
    "SA8295P": "SA8295",
    "52": "SA8255",  # the first of five names
}


@pytest.mark.parametrize("soc_name", ROWS)
def test_inspect_says_which_lanes_take_an_soc(soc_name: str) -> None:
    answer = answer_soc(soc_name)
    supported = tuple(lane.is_supported for lane in answer.lanes)
    assert (answer.name, supported, (*answer.siblings, "")[0]) == ROWS[soc_name]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_soc_has_several_spellings(spelling: str) -> None:
    assert answer_soc(spelling).name == SPELLINGS[spelling]
    assert find_any_soc(spelling).id == read_all_socs()[SPELLINGS[spelling]].id


@pytest.mark.parametrize("version", ["V75", "v75", "Hexagon V75", "htp-v75"])
def test_a_version_of_the_hexagon_is_no_soc(version: str) -> None:
    with pytest.raises(UsageError, match="which several SoCs have") as refused:
        answer_soc(version)
    assert refused.value.fix == "pass one of them: SM8650, SA8620P, QCS8300, QCS8625"


def test_the_answer_names_what_the_lanes_call_an_soc() -> None:
    text = """\
SA8255 (SA8775P): Hexagon V73, 8 MiB of VTCM, float16
  QNN's number 52, the same as SA8630, SA8650, SA8775
  QNN: 2.47.0 knows it; older ones were not read
  test_emulator, test_llm (ExecuTorch): yes, --soc SA8255 (since ExecuTorch 1.2.0 or before)
  test_onnx (onnxruntime-qnn): yes, --soc SA8255
  test_litert (LiteRT's plugin): yes, --soc SA8255
  nearest sibling: QCS9100; others with this Hexagon version: SC8380XP, SM8550, SSG2115P, SSG2125P,\
 SXR1230P"""
    assert render_soc(answer_soc("SA8775P")) == text


UNKNOWN = ("SM8650P", "", "*", "SM8*", "SM8650\n", "../socs")
NEARLY_KNOWN = ("V12", "SM8650-XY", "999", "Snapdragon", "Dragonwing", "Snapdragon 8", "qualcomm 8")


@pytest.mark.parametrize("soc_name", [*UNKNOWN, *NEARLY_KNOWN])
def test_an_unknown_soc_is_refused_with_what_is_near(soc_name: str) -> None:
    with pytest.raises(UsageError, match="none of the lanes knows an SoC") as unknown:
        answer_soc(soc_name)
    assert "socs.md lists all names" in unknown.value.fix


FAMILIES = {
    "snapdragon x": "names that begin so are Snapdragon X Elite; ",
    "Dragonwing": "names that begin so are Dragonwing RB3 Gen 2, Dragonwing IQ9, ",
    "snapdragon 7 gen 3": "did you mean Snapdragon 8 Gen 3 or Snapdragon 7 Gen 4 or ",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_refused_with_its_socs(family: str) -> None:
    with pytest.raises(UsageError) as unknown:
        answer_soc(family)
    assert unknown.value.fix.startswith(FAMILIES[family])


def test_an_soc_is_not_said_to_be_the_same_as_its_own_name() -> None:
    lines = render_soc(answer_soc("SM8650")).splitlines()
    assert lines[1] == "  QNN's number 57, also called Snapdragon 8 Gen 3"


@pytest.mark.parametrize("soc_name", ["SA8775", "SA8630", "SM8150", "SDM855"])
def test_what_is_known_of_a_number_counts_for_all_its_names(soc_name: str) -> None:
    assert answer_soc(soc_name).qnn == "2.47.0"


def test_every_name_of_the_table_is_answered() -> None:
    for name, soc in read_all_socs().items():
        for spelling in (name, name.lower(), *soc.also_called):
            answer = answer_soc(spelling)
            assert answer.number == soc.id
            assert render_soc(answer).startswith(answer.name)


@pytest.mark.parametrize(
    ("name", "version", "too_old"),
    [
        ("SM8850", "2.42.0", True),
        ("SM8850", "2.37.1", True),
        ("SM8850", "2.44.0", False),  # not known
        ("SM8850", "2.46.0", False),
        ("SM8750", "2.20.0", False),  # nothing is known of it
    ],
)
def test_only_a_qnn_that_is_known_not_to_know_an_soc_is_too_old(
    name: str, version: str, too_old: bool
) -> None:
    assert is_too_old(find_any_soc(name), version) is too_old


def test_a_device_is_refused_with_its_soc(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--soc", "Galaxy S24"]) == ExitCode.USAGE
    refusal = capsys.readouterr().err
    assert "'Galaxy S24' is a device, and not an SoC\n  fix: use SM8650, its SoC" in refusal
