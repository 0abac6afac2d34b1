"""An image for private use with a profile's artifacts in it, so marked that it is never pushed."""

from __future__ import annotations

import tarfile
import tempfile
from typing import TYPE_CHECKING

from ci.images.build import Built, follow_build
from ci.images.definition import ImagePlan
from ci.images.normalize import add_text
from ci.images.push import TOOLCHAINS_LABEL
from provisioning.artifacts.environment import locate_profile
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from provisioning.store.store import Store

if TYPE_CHECKING:
    from docker.client import DockerClient

HOME = "/opt/qnn-ci/store-home"


def bake_toolchains(
    client: DockerClient, plan: ImagePlan, built: Built, progress: Progress
) -> Built:
    """``built`` with what its profile has in the store.

    Raises UnfitError when that is not all there, or is an installation outside of the store.
    """
    environment = locate_profile(plan.image.profile, progress)
    if adopted := [one for one in environment.artifacts if one.adopted]:
        raise UnfitError(
            f"{adopted[0].name} is not in the store",
            why=f"it is the installation {adopted[0].root}",
            fix="unset the variable that names it, and provision it",
        )
    names = " ".join(f"{one.name}-{one.version}" for one in environment.artifacts)
    store = Store()
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            text = (
                f"FROM {built.image_id}\nCOPY store {HOME}/store\n"
                f'ENV QNN_CI_HOME={HOME}\nLABEL {TOOLCHAINS_LABEL}="{names}"\n'
            )
            add_text(archive, "Dockerfile", text)
            for one in environment.artifacts:
                published = one.root.parent
                archive.add(published, f"store/{published.relative_to(store.home / 'store')}")
        file.seek(0)
        progress.step(f"{plan.name}: adding {names}")
        events = client.api.build(
            fileobj=file, custom_context=True, rm=True, forcerm=True, decode=True
        )
        image_id = follow_build(events, plan.name, progress)
    repository, tag = plan.reference().split(":")
    reference = f"{repository}:{tag}-toolchains"
    client.api.tag(image_id, repository, f"{tag}-toolchains")
    return Built(reference, image_id, int(client.images.get(image_id).attrs["Size"]), fresh=True)
