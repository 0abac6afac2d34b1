"""docs/provisioning.md: small artifacts of every kind, from an index and a server of our own."""

from __future__ import annotations

import json

from tests.documented.recipe import Recipe
from tests.documented.setups import (
    accept_licences,
    damage_store,
    fetch_all,
    name_github_files,
    serve_artifacts,
    shrink_provisioning_bench,
)
from tests.documented.stage import Ended, Stage

SERVED = (serve_artifacts,)
ACCEPTED = (serve_artifacts, accept_licences)
FETCHED = (serve_artifacts, fetch_all)


def has_two_components(stage: Stage, ended: Ended) -> None:
    (tree,) = (stage.folder / "world/home/store").glob("*/tree.json")
    assert json.loads(tree.read_text())["components"] == ["headers", "host"]


def has_lock(stage: Stage, ended: Ended) -> None:
    (lock,) = (stage.folder / "world/manifests/locks").iterdir()
    assert lock.name.startswith("qnn-sdk-2.37")


def has_no_lock(stage: Stage, ended: Ended) -> None:
    assert not (stage.folder / "world/manifests/locks").exists()


def has_mirror(stage: Stage, ended: Ended) -> None:
    assert {path.name for path in (stage.project / "DIR").iterdir()} >= {
        "SHA256SUMS",
        "qairt-2.37.0.250724.zip",
    }


def is_repaired(stage: Stage, ended: Ended) -> None:
    again = stage.run("python -m provisioning verify")
    assert again.returncode == 0, again.said


def sets_variables(stage: Stage, ended: Ended) -> None:
    assert "QNN_SDK_ROOT=" in (stage.project / "github.env").read_text()


RECIPES = {
    "nox -s provision -- emulator": Recipe(setup=SERVED, says=("qnn-runtime 9.9.9 +/",)),
    "nox -s provision -- NAME...": Recipe(
        setup=ACCEPTED, fill={"NAME...": "emulator libcxx"}, says=("qnn-runtime 9", "libcxx 14")
    ),
    "qnn-ci fetch aot": Recipe(setup=ACCEPTED, says=("qnn-sdk 2.37", "libcxx 14")),
    "qnn-ci fetch emulator+qnn-runtime@2.49.40": Recipe(
        setup=SERVED, fill={"2.49.40": "9.9.9"}, says=("qnn-runtime 9.9.9 +/",)
    ),
    "qnn-ci fetch qnn-sdk:headers,host": Recipe(
        setup=ACCEPTED, says=("qnn-sdk 2.37",), then=has_two_components
    ),
    # What no machine may do without a person: a licence is accepted by nobody.
    "qnn-ci fetch qnn-sdk": Recipe(
        setup=SERVED, code=3, says=("has not been accepted", "--accept-licence")
    ),
    "qnn-ci list": Recipe(
        setup=FETCHED, says=("qnn-sdk +2.37", "profile aot: qnn-sdk, libcxx", "MiB")
    ),
    "qnn-ci fetch NAME...": Recipe(
        setup=ACCEPTED, fill={"NAME...": "qnn-sdk qnn-runtime"}, says=("qnn-sdk 2", "qnn-runtime 9")
    ),
    "qnn-ci path NAME": Recipe(
        setup=FETCHED, fill={"NAME": ("qnn-runtime", "libcxx")}, says=("^/.*/store/",)
    ),
    "qnn-ci verify [NAME...]": Recipe(
        setup=FETCHED, fill={"[NAME...]": ("", "libcxx")}, says=("as they should be",)
    ),
    "qnn-ci verify --repair": Recipe(
        setup=(*FETCHED, damage_store), code=0, says=("repaired",), then=is_repaired
    ),
    "qnn-ci lock NAME...": Recipe(
        setup=ACCEPTED,
        fill={"NAME...": "qnn-sdk"},
        says=(r"\+\+\+ b/manifests/locks/qnn-sdk", "nothing was written"),
        then=has_no_lock,
    ),
    "qnn-ci lock qnn-sdk": Recipe(
        setup=ACCEPTED, adds="--write", says=(r"\+\+\+ b/manifests/locks/qnn-sdk",), then=has_lock
    ),
    "qnn-ci lock qnn-sdk --from FILE --accept-licence --write": Recipe(
        setup=SERVED,
        fill={"FILE": "../sdk.zip"},
        says=("trusted as SHA-256|is pinned|manifests/locks/qnn-sdk",),
        then=has_lock,
    ),
    "qnn-ci fetch android": Recipe(
        setup=SERVED, fill={"android": "aot"}, code=3, says=("to read:",)
    ),
    "lock NAME --write": Recipe(
        setup=ACCEPTED,
        fill={"lock": "python -m provisioning lock", "NAME": "qnn-sdk"},
        then=has_lock,
    ),
    "qnn-ci update ARTIFACT[@VERSION]": Recipe(
        setup=ACCEPTED,
        fill={"ARTIFACT[@VERSION]": ("qnn-runtime", "qnn-runtime@1.0")},
        says=("nothing changed",),
    ),
    "qnn-ci gc": Recipe(setup=FETCHED, says=(r"freed 0\.0 MiB",)),
    "qnn-ci env PROFILE": Recipe(
        setup=FETCHED, fill={"PROFILE": ("emulator", "aot")}, says=("export QNN_SDK_ROOT=",)
    ),
    "qnn-ci env emulator": Recipe(setup=FETCHED, says=("export QNN_SDK_ROOT=",)),
    'eval "$(qnn-ci env emulator --shell)"': Recipe(
        setup=FETCHED, adds='&& ls "$QNN_SDK_ROOT/lib"', says=("x86_64-linux-clang",)
    ),
    'qnn-ci env emulator --github >> "$GITHUB_ENV"': Recipe(
        setup=(*FETCHED, name_github_files), then=sets_variables
    ),
    "fetch --to": Recipe(
        setup=ACCEPTED,
        fill={"fetch": "python -m provisioning fetch"},
        adds="DIR qnn-sdk",
        then=has_mirror,
    ),
    "fetch NAME... --to DIR": Recipe(
        setup=ACCEPTED,
        fill={"fetch": "python -m provisioning fetch", "NAME...": "qnn-sdk"},
        says=("QNN_CI_MIRROR=",),
        then=has_mirror,
    ),
    "nox -s bench -- provisioning": Recipe(
        setup=(shrink_provisioning_bench,),
        says=("ours is",),
        leaves=("reports/bench/provisioning.json",),
        needs=("curl", "unzip"),
        with_models=True,
    ),
}
