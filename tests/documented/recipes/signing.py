"""docs/signing.md: small Hexagon libraries, signed by the stand-in for the SDK's signer."""

from __future__ import annotations

from tests.documented.recipe import Recipe
from tests.documented.setups import attach_phone, give_runner, give_signer, sign
from tests.documented.stage import Ended, Stage

SIGNED = (give_signer, sign)
DIRECT = "nox -s sign_skel -- --lpai-arch v6 --direct-mode --htp-arch v81"


def signs_nothing(stage: Stage, ended: Ended) -> None:
    assert not (stage.project / "signed").exists()


def pushes_the_skel(stage: Stage, ended: Ended) -> None:
    pushed = stage.folder / "phone/data/local/tmp/model/libQnnLpaiSkel.so"
    assert pushed.read_bytes() == (stage.project / "signed/libQnnLpaiSkel.so").read_bytes()


RECIPES = {
    "nox -s sign_skel -- --lpai-arch v6 --dry-run": Recipe(
        setup=(give_signer,), says=("libQnnLpaiSkel.so: V79",), then=signs_nothing
    ),
    "nox -s sign_skel -- --lpai-arch v6": Recipe(
        setup=(give_signer,),
        says=("proven", r"signed and verified in \S*signed: 1"),
        leaves=("signed/libQnnLpaiSkel.so", "signed/signing.json"),
    ),
    DIRECT: Recipe(
        setup=(give_signer,),
        says=(r"signed and verified in \S*signed: 6",),
        leaves=("signed/libQnnLpai.so", "signed/libqnn_executorch_skel.so"),
    ),
    "qnn-ci verify-signature signed": Recipe(
        setup=SIGNED, says=("proven", "record of signed: matches")
    ),
    "verify-signature DIRECTORY": Recipe(
        setup=SIGNED,
        fill={"verify-signature": "python -m ci verify-signature", "DIRECTORY": "signed"},
        says=("matches",),
    ),
    "verify-signature FILE ...": Recipe(
        setup=SIGNED,
        fill={
            "verify-signature": "python -m ci verify-signature",
            "FILE ...": "signed/libQnnLpaiSkel.so",
        },
        says=("proven",),
    ),
    "nox -s sign_skel": Recipe(setup=(give_signer,), code=2),
    "qnn-ci sign": Recipe(setup=(give_signer,), code=2),
    # Nobody accepted Qualcomm's licence here: refused before a byte is fetched.
    "nox -s provision -- lpai": Recipe(code=3, says=("qnn-sdk 2.39", "licence")),
    "nox -s build_direct": Recipe(code=2, says=("is for one SoC",), with_models=True),
    "adb root": Recipe(setup=(attach_phone,), says=("adbd",)),
    "adb push signed/libQnnLpaiSkel.so /data/local/tmp/model/": Recipe(
        setup=(*SIGNED, attach_phone), then=pushes_the_skel
    ),
    'adb shell "cd /data/local/tmp/model && LD_LIBRARY_PATH=. ADSP_LIBRARY_PATH=. '
    './qnn_executor_runner --model_path model.pte"': Recipe(
        setup=(attach_phone, give_runner), says=(r"searched \. and \. for --model_path model.pte",)
    ),
}
