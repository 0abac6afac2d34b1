"""All checks of one environment: facts and policies in, findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from provisioning.doctor.checks.checkout import CHECKOUTS
from provisioning.doctor.checks.coherence import FAMILIES
from provisioning.doctor.checks.device import DEVICES
from provisioning.doctor.checks.elf import CONTENT, DEFECTS, TARGET
from provisioning.doctor.checks.files import NEEDS, find_groups, judge_group
from provisioning.doctor.checks.host import TOOLS
from provisioning.doctor.checks.ndk import NDKS
from provisioning.doctor.checks.pairs import ADAPTOR
from provisioning.doctor.checks.python import PYTHON
from provisioning.doctor.checks.registry import ENVIRONMENT, Case, Check, Finding, Subjects
from provisioning.doctor.checks.sdk import INSTALLATIONS, SDK
from provisioning.doctor.checks.staging import STAGINGS
from provisioning.doctor.checks.variables import RUNTIMES, VARIABLES
from provisioning.doctor.facts import HOST_KIND

SUBJECTS: tuple[Subjects[Any], ...] = (
    *(ENVIRONMENT, TOOLS, INSTALLATIONS, SDK, DEFECTS, TARGET, CONTENT, NEEDS, FAMILIES, STAGINGS),
    *(VARIABLES, RUNTIMES, PYTHON, NDKS, CHECKOUTS, DEVICES, ADAPTOR),
)


def list_checks() -> list[Check[Any]]:
    """Every check, in the order of ids."""
    return sorted((row for one in SUBJECTS for row in one.checks), key=lambda row: row.id)


def judge_environment(case: Case) -> list[Finding]:
    """Every finding, sorted by id, each once."""
    case = _with_host_glibc(case)
    findings = [finding for subjects in SUBJECTS for finding in subjects.judge_all(case)]
    findings += [finding for group in find_groups(case) for finding in judge_group(group)]
    return sorted({finding.printable() for finding in findings})


def _with_host_glibc(case: Case) -> Case:
    """Programs of the host run on this machine, so its glibc is the one that counts."""
    glibc, policy = case.facts.host.glibc, case.host_policy
    if glibc is None or policy is None:
        return case
    policy = msgspec.structs.replace(policy, glibc=glibc)
    return replace(case, kinds={**case.kinds, HOST_KIND: policy})
