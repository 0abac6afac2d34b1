"""Roots are those given, else the variables', else what profile lpai has in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.signing.plan import VARIABLES, find_roots
from provisioning.artifacts.environment import profile_requests
from provisioning.artifacts.sources import Options
from provisioning.console.progress import Progress
from provisioning.manifest.reader import read_profile
from provisioning.store.store import Store
from provisioning.store.tree import Tree

ALL = set(VARIABLES)


@pytest.fixture(autouse=True)
def empty_home(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def put_in_store(name: str) -> Path:
    """An empty artifact of profile lpai, published as a fetch publishes it."""
    (request,) = [
        one
        for one in profile_requests(read_profile("lpai"), Options(offline=True))
        if one.toolchain.name == name
    ]
    store, key = Store(), request.key()
    with store.stage(key) as staged:
        tree = Tree(name, request.release.version, "0" * 64, request.components, ())
        return store.publish(key, staged, tree).root


def test_given_counts_before_the_variable(tmp_path: Path) -> None:
    given = {"qnn_sdk": tmp_path / "mine"}
    environment = {"QNN_SDK_ROOT": "/theirs", "HEXAGON_SDK_ROOT": "/hexagon"}
    roots = find_roots(given, tmp_path, environment, set(), Progress())
    assert (roots.qnn_sdk, roots.hexagon_sdk) == (tmp_path / "mine", Path("/hexagon"))
    assert roots.hexagon_tools is None
    assert roots.build == tmp_path


def test_profile_lpai_in_the_store_is_found(tmp_path: Path) -> None:
    qnn, hexagon = put_in_store("qnn-sdk"), put_in_store("hexagon-sdk")
    roots = find_roots({}, tmp_path, {}, ALL, Progress())
    assert (roots.qnn_sdk, roots.hexagon_sdk) == (qnn, hexagon)
    assert roots.hexagon_tools == hexagon / "tools" / "HEXAGON_Tools" / "19.0.07"


def test_tools_are_in_the_named_hexagon_sdk(tmp_path: Path) -> None:
    environment = {"HEXAGON_SDK_ROOT": "/hexagon"}
    roots = find_roots({}, tmp_path, environment, ALL, Progress())
    assert roots.hexagon_tools == Path("/hexagon/tools/HEXAGON_Tools/19.0.07")
    assert roots.qnn_sdk is None


def test_tools_alone_are_in_the_sdk_of_the_store(tmp_path: Path) -> None:
    nothing = find_roots({}, tmp_path, {}, {"hexagon_tools"}, Progress())
    assert (nothing.hexagon_sdk, nothing.hexagon_tools) == (None, None)
    hexagon = put_in_store("hexagon-sdk")
    found = find_roots({}, tmp_path, {}, {"hexagon_tools"}, Progress())
    assert found.hexagon_tools == hexagon / "tools" / "HEXAGON_Tools" / "19.0.07"
    assert found.hexagon_sdk is None


def test_what_is_not_needed_is_not_looked_up(tmp_path: Path) -> None:
    put_in_store("qnn-sdk")
    assert find_roots({}, tmp_path, {}, {"hexagon_sdk"}, Progress()).qnn_sdk is None
