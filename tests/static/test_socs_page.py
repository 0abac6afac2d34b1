"""docs/reference/socs.md lists the SoCs of manifests/socs.toml.

``python -m tests.static.test_socs_page`` writes its table.
"""

from __future__ import annotations

from pathlib import Path

from ci.inspect.socs import SocAnswer, answer_soc
from provisioning.manifest.targets import read_all_socs

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "socs.md"
MARK = "<!-- the table is generated -->\n"
HEAD = (
    "| SoC | other names | Hexagon | VTCM, MiB | float16 | LPAI | PyTorch | ONNX | LiteRT | QNN |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)


def list_answers() -> list[SocAnswer]:
    """Return the answer for the first name of each number, the newest Hexagon first."""
    answers: dict[int, SocAnswer] = {}
    for name in read_all_socs():
        answer = answer_soc(name)
        answers.setdefault(answer.number, answer)
    return sorted(answers.values(), key=lambda answer: (-answer.hexagon, answer.name))


def make_row(answer: SocAnswer) -> str:
    lanes = ["yes" if lane.is_supported else "no" for lane in answer.lanes]
    for place, lane in enumerate(answer.lanes):
        if lane.is_supported and lane.name != answer.name:
            lanes[place] = f"as {lane.name}"
    since = f"{answer.qnn} (not {answer.not_qnn})" if answer.not_qnn else answer.qnn
    cells = [
        answer.name,
        ", ".join(answer.also_called),
        f"V{answer.hexagon}" if answer.hexagon else "none",
        str(answer.vtcm_mb or ""),
        "yes" if answer.float16 else "no",
        f"v{answer.lpai}" if answer.lpai is not None else "",
        *lanes,
        since or "not known",
    ]
    return f"| {' | '.join(cells)} |\n"


def make_page(text: str) -> str:
    """Return the page with the table of today."""
    return text.partition(MARK)[0] + MARK + "\n" + HEAD + "".join(map(make_row, list_answers()))


def test_the_page_of_socs_is_generated_from_the_table() -> None:
    text = PAGE.read_text()
    assert text == make_page(text), "run `python -m tests.static.test_socs_page`"


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
