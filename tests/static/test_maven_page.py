"""docs/guides/app.md lists the packages of manifests/policies/maven.toml.

``python -m tests.static.test_maven_page`` writes its table.
"""

from __future__ import annotations

from pathlib import Path

from ci.inspect.maven import Package, read_packages

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "app.md"
START, END = "<!-- maven: generated -->\n", "<!-- end of maven -->\n"
HEAD = "| package | QNN that it brings | other releases | source |\n|---|---|---|---|\n"


def make_row(name: str, package: Package) -> str:
    qnn, other_releases = "none: depend on qnn-runtime, too", ""
    if package.same_version:
        qnn += ", in the same version"
    if package.is_qnn:
        qnn = "its own version"
    elif package.brings_qnn:
        qnn = ", ".join(f"{release}: {qnn}" for release, qnn in package.releases.items())
        other_releases = "not known"
    sources = [
        f"[{source.partition('github.com/')[2]}]({source})" if "://" in source else source
        for source in package.source.split(", ")
    ]
    return f"| {name} | {qnn} | {other_releases} | {', '.join(sources)} |\n"


def make_page(text: str) -> str:
    """Return the page with the table of today."""
    before, _, text_after = text.partition(START)
    after = text_after.partition(END)[2]
    rows = "".join(make_row(name, package) for name, package in read_packages().items())
    return f"{before}{START}\n{HEAD}{rows}\n{END}{after}"


def test_the_table_of_packages_is_generated() -> None:
    text = PAGE.read_text()
    assert text == make_page(text), "run `python -m tests.static.test_maven_page`"


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
