"""Several artifacts put in place side by side: one downloads while another is unpacked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from provisioning.artifacts.outline import show_outline
from provisioning.artifacts.provision import Provisioned, locate_artifact, provision_artifact
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.process import end_running
from provisioning.console.progress import Progress
from provisioning.fetch.client import end_transfers
from provisioning.store.store import Store

AT_ONCE = 4
POLL_S = 0.1


def provision_artifacts(
    requests: Sequence[ArtifactRequest], store: Store, progress: Progress, *, verify: bool = False
) -> list[Provisioned]:
    """Every artifact of ``requests``, in their order, as provision_artifact has each.

    What is to come is shown, and consent asked for, before anything is fetched. When one artifact
    fails the others are finished first, and the first failure is raised.
    """
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.name, []).append(number)
    missing = _find_missing(requests, store)
    if missing:
        show_outline(missing, store, progress)
    if len({request.name for request in missing}) < 2:
        return [provision_artifact(each, store, progress, verify=verify) for each in requests]
    plain = Progress(progress.stream)  # several live bars would share one line

    def bring(numbers: Sequence[int]) -> list[tuple[int, Provisioned]]:
        return [
            (number, provision_artifact(requests[number], store, plain, verify=verify))
            for number in numbers
        ]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(bring, numbers) for numbers in groups.values()]
        try:
            while wait(futures, POLL_S).not_done:
                pass  # an interrupt is noticed between two waits
        except BaseException:
            _end(futures)
            raise
    found = dict(pair for future in futures for pair in future.result())
    return [found[number] for number in range(len(requests))]


def _find_missing(requests: Sequence[ArtifactRequest], store: Store) -> list[ArtifactRequest]:
    quiet = Progress()
    return [request for request in requests if locate_artifact(request, store, quiet) is None]


def _end(futures: Sequence[Future[list[tuple[int, Provisioned]]]]) -> None:
    """End what the threads wait for: transfers, pip and git."""
    for future in futures:
        future.cancel()
    with end_transfers():
        end_running(futures)
        while wait(futures, POLL_S).not_done:
            time.sleep(POLL_S)
