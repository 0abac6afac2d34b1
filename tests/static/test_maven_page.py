"""docs/guides/app.md lists the packages of manifests/policies/maven.toml.

``python -m tests.static.test_maven_page`` writes its tables.
"""

from __future__ import annotations

from pathlib import Path

from ci.inspect.maven import Package, read_packages

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "app.md"
START, END = "<!-- maven: generated -->\n", "<!-- end of maven -->\n"
HEAD = "| package | QNN that it brings | other releases | source |\n|---|---|---|---|\n"


LITERT_HEAD = (
    "| package of LiteRT | from version | what runs models or connects LiteRT to QNN in it"
    " | libraries of the device that its manifest declares | source |\n"
    "|---|---|---|---|---|\n"
)


def link_sources(package: Package) -> str:
    """Return the sources of a row, with the end of each address as its text."""
    links = []
    for source in package.source.split(", "):
        text = source.partition("github.com/")[2].replace("blob/", "")
        links.append(f"[{text}]({source})" if text else source)
    return ", ".join(links)


def make_row(name: str, package: Package) -> str:
    qnn, other_releases = "none: depend on qnn-runtime, too", ""
    if package.same_version:
        qnn += ", in the same version"
    if package.is_qnn:
        qnn = "its own version"
    elif package.brings_qnn:
        qnn = ", ".join(f"{release}: {qnn}" for release, qnn in package.releases.items())
        other_releases = "not known"
    return f"| {name} | {qnn} | {other_releases} | {link_sources(package)} |\n"


def make_litert_rows(name: str, package: Package) -> str:
    rows, sources = "", link_sources(package)
    for contents in package.contents:
        libraries = ", ".join(contents.libraries) or "nothing"
        declared = ", ".join(contents.declares)
        rows += f"| {name} | {contents.since} | {libraries} | {declared} | {sources} |\n"
        sources = "as above"
    return rows


def make_page(text: str) -> str:
    """Return the page with the tables of today."""
    before, _, text_after = text.partition(START)
    after = text_after.partition(END)[2]
    packages = read_packages().items()
    rows = "".join(
        make_row(name, package)
        for name, package in packages
        if package.brings_qnn or package.needs_qnn
    )
    of_litert = "".join(make_litert_rows(name, package) for name, package in packages)
    return f"{before}{START}\n{HEAD}{rows}\n{LITERT_HEAD}{of_litert}\n{END}{after}"


def test_the_table_of_packages_is_generated() -> None:
    text = PAGE.read_text()
    assert text == make_page(text), "run `python -m tests.static.test_maven_page`"


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text()))
