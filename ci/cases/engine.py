"""A lowering as it is asked for and answered: what crosses to the process that has torch."""

from __future__ import annotations

from msgspec import Struct

from ci.cases.artifact import Lowered
from ci.models.degenerate import ReferencePolicy
from ci.models.schemes import Scheme
from ci.models.user_models import NO_SOURCE, Source
from provisioning.manifest.backends import Backend


class LowerJob(Struct, frozen=True):
    """What to lower. ``toolchain`` names every version and digest that takes part, ``model`` is
    one of the suite or a user's ``file.py:factory``, and ``source`` has the data beside it.

    ``reference`` says which references prove nothing, ``plain`` that no patch saves time.
    """

    model: str
    scheme: Scheme
    soc: str
    cache: str
    toolchain: tuple[str, ...]
    log: str
    use_cache: bool = True
    reference: ReferencePolicy | None = None
    source: Source = NO_SOURCE
    backend: Backend = Backend.HTP
    plain: bool = False


class LowerResult(Struct, frozen=True):
    """Where the artifact is, or ``refused``: why QNN or ExecuTorch did not lower the model.

    ``stages`` are the seconds that it took now, by stage.
    """

    directory: str = ""
    lowered: Lowered | None = None
    cached: bool = False
    repaired: bool = False
    refused: str = ""
    stages: dict[str, float] = {}
