"""The border between the command line and everything below the verbs: checks the parsed arguments,
and makes the Request of a call. Nothing below the verbs reads an argparse.Namespace, and nothing
writes to one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeVar

from ci.cases.request import Request
from ci.report.claim import REPORTS_FIX
from ci.report.export import check_export, check_session
from ci.verbs.options import (
    check_values,
    list_digested,
    name_mending,
    repeat_command,
    require_effect,
)
from ci.verbs.user_policy import OURS, choose_policy
from provisioning.artifacts.choice import QnnChoice, read_choice
from provisioning.errors import StoreError
from provisioning.files import require_writable

AnyRequest = TypeVar("AnyRequest", bound=Request)
# The fields of Request whose options have other names
FIELDS = {
    "model": "models",
    "scheme": "schemes",
    "soc": "socs",
    "list": "lists",
    "keep_artifacts": "keep",
}
LISTING = ("--policy", "--shape", "--backend", "--runner", "--option")
# With a model, whose nodes are read in a separate process
LISTING_NODES = ("--model", "--scheme", "--soc", "--timeout-s", "--executorch")


def check_arguments(args: argparse.Namespace, session: str) -> None:
    """Raise UsageError for a value that no run can use, and StoreError if a directory that the run
    will write to is not writable. The reports are claimed later, before the work begins, so that
    wrong options are reported even while another run writes there."""
    check_values(args)
    if not args.list:
        # Before the run, which may take minutes, and not when its report is written.
        require_writable(args.reports / session, REPORTS_FIX)
        check_session(args.reports / session)
        if args.keep_artifacts:
            require_writable(args.keep_artifacts)
        if args.sarif and args.sarif.is_dir():
            why, fix = "it is a directory", "pass a file to --sarif"
            raise StoreError(f"{args.sarif} cannot be written", why=why, fix=fix)
        if args.sarif and not args.sarif.exists():
            require_writable(args.sarif.parent)
        check_export(args.sarif, "--sarif")
        if args.keep_artifacts:
            check_export(args.keep_artifacts / "report.json", "--keep-artifacts")


def make_request(
    kind: type[AnyRequest],
    args: argparse.Namespace,
    session: str,
    *,
    parsed: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> AnyRequest:
    """Return the request of a call. ``kind`` is Request or the subclass with a lane's own options.

    ``parsed`` replace values of options, also in the command that repeats the call; ``values`` are
    fields of the request that no option has as they are. Raises UsageError for a policy that is not
    a file, and for an option that has no effect with --list.
    """
    options: dict[str, Any] = {**vars(args), **parsed}
    if options["list"]:
        nodes = LISTING_NODES if options["model"] else ()
        require_effect(args, "--list", *LISTING, *nodes)
    # A verb that judges other tests than models has no --policy, and must find none.
    typed_policy = options.get("policy")
    policy = choose_policy(typed_policy) if "policy" in options else None
    # What a variable chose becomes an option, so that the command in the report repeats the run.
    choice = read_choice(options["sdk"], options["adaptor"]) if "sdk" in options else QnnChoice()
    repeated_policy = OURS if typed_policy == OURS else policy
    repeated = {**parsed, **choice.options, "policy": repeated_policy}
    names = {field.name for field in fields(kind)}
    request_fields: dict[str, Any] = {}
    for option, value in options.items():
        name = FIELDS.get(option, option)
        if name in names:
            request_fields[name] = tuple(value) if isinstance(value, list) else value
    if not isinstance(options.get("model"), list):
        request_fields["models"] = None
    request_fields |= {
        "session": session,
        "policy": policy,
        "is_policy_typed": typed_policy is not None,
        "is_own_policy_typed": typed_policy == OURS,
        "use_cache": not options.get("no_cache"),
        "choice": choice,
        "command": repeat_command(args, **repeated),
        "mending": name_mending(args, repeated_policy),
        "shared_words": tuple(list_digested(args)),
        **values,
    }
    return kind(**request_fields)
