"""Which Python the lane needs."""

from __future__ import annotations

import pytest

from ci.onnx.toolchain import require_python
from provisioning.errors import UnfitError


def test_python_3_10_is_refused_with_the_reason() -> None:
    require_python("3.11.0", "LiteRT")
    for version in ("3.9.2", "3.10.15"):
        with pytest.raises(UnfitError, match=rf"this is Python {version}.* LiteRT") as caught:
            require_python(version, "LiteRT")
    assert caught.value.fix == "run nox with Python 3.11 or later"
