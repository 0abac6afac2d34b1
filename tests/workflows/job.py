"""One job, executed here: its run blocks in real shells, its actions real or as stand-ins."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workflows.commands import FILES, CommandError, Heard, read_pairs
from tests.workflows.document import ROOT, Document, read_document
from tests.workflows.expressions import (
    Context,
    ExpressionError,
    judge,
    render_value,
    to_string,
)

LIMIT_S = 300
SHELLS = {
    "": ("bash", "-e"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
    "sh": ("sh", "-e"),
}


class ActionError(Exception):
    """An action that failed, with what it says and the outputs that it had set by then."""

    def __init__(self, text: str, outputs: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.outputs = outputs or {}


@dataclass(frozen=True)
class ActionCall:
    """What a stand-in gets: the inputs of ``with`` as strings, and the job that calls."""

    name: str
    inputs: Mapping[str, str]
    job: JobRun


Action = Callable[[ActionCall], Mapping[str, str]]


@dataclass
class Setting:
    """What is around a job: the event, the disk, the services of GitHub as stand-ins.

    ``cancel_before`` names a step at which somebody cancels the run, ``lost_before`` one at which
    the machine is gone.
    """

    folder: Path
    github: dict[str, Any]
    variables: dict[str, str]
    actions: Mapping[str, Action]
    secrets: dict[str, str] = field(default_factory=dict)
    vars: dict[str, str] = field(default_factory=dict)
    job: dict[str, str] = field(default_factory=dict)
    cancel_before: str = ""
    lost_before: str = ""

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def temp(self) -> Path:
        return self.folder / "temp"


@dataclass(frozen=True)
class StepResult:
    """How a step ended: outcome before continue-on-error, conclusion after."""

    outcome: str
    conclusion: str
    outputs: Mapping[str, str] = field(default_factory=dict)

    def as_context(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "conclusion": self.conclusion,
            "outputs": dict(self.outputs),
        }


@dataclass
class JobRun:
    """A job at work."""

    setting: Setting
    contexts: dict[str, Any]
    shell: str = ""
    env: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    status: str = "success"
    heard: Heard = field(default_factory=Heard)
    summary: str = ""
    ran: list[str] = field(default_factory=list)
    action_path: Path | None = None
    permissions: Mapping[str, str] = field(default_factory=dict)

    def context(self, steps: Mapping[str, StepResult], **contexts: Any) -> Context:
        """What expressions see."""
        values = {
            **self.contexts,
            "env": self.env,
            "steps": {name: result.as_context() for name, result in steps.items()},
            "job": {**self.setting.job, "status": self.status},
            **contexts,
        }
        return Context(values, self.status, self.setting.workspace)

    def run_steps(self, steps: list[Mapping[str, Any]], **contexts: Any) -> dict[str, StepResult]:
        """Run steps in order; ``status`` says how it went."""
        results: dict[str, StepResult] = {}
        for number, step in enumerate(steps, 1):
            label = step.get("name") or step.get("id") or step.get("uses") or f"step {number}"
            if self.setting.cancel_before and self.setting.cancel_before in label:
                self.status = "cancelled"
            if self.setting.lost_before and self.setting.lost_before in label:
                self.status = "failure"
                return results
            result = self._run_step(step, label, self.context(results, **contexts), contexts)
            results[step.get("id", f"#{number}")] = result
            if result.conclusion == "failure" and self.status == "success":
                self.status = "failure"
        return results

    def _run_step(
        self, step: Mapping[str, Any], label: str, context: Context, contexts: Mapping[str, Any]
    ) -> StepResult:
        try:
            if not judge(step.get("if"), context):
                return StepResult("skipped", "skipped")
            added = render_value(step.get("env", {}), context)
            env = {**self.env, **{key: to_string(value) for key, value in added.items()}}
            inside = Context({**context.values, "env": env}, context.status, context.workspace)
            self.ran.append(label)
            if "run" in step:
                outputs = self._run_shell(step, env, inside)
            else:
                outputs = self._use(step, env, inside)
        except (ActionError, ExpressionError, CommandError) as error:
            self.heard.hear(f"::error::{error}")
            hidden = step.get("continue-on-error") is True
            outputs = error.outputs if isinstance(error, ActionError) else {}
            return StepResult("failure", "success" if hidden else "failure", outputs)
        return StepResult("success", "success", outputs)

    def _run_shell(
        self, step: Mapping[str, Any], env: Mapping[str, str], context: Context
    ) -> Mapping[str, str]:
        text = to_string(render_value(step["run"], context))
        words = SHELLS[step.get("shell", self.shell)]
        with_files = {name: self.setting.temp / f"{name}-{uuid.uuid4().hex}" for name in FILES}
        for path in with_files.values():
            path.touch()
        script = self.setting.temp / f"{uuid.uuid4().hex}.sh"
        script.write_text(text, encoding="utf-8")
        where = self.setting.workspace / to_string(
            render_value(step.get("working-directory", "."), context)
        )
        ended = subprocess.run(
            [*words, str(script)],
            cwd=where,
            env=self._variables(env, with_files),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        self.heard.hear(ended.stdout.decode("utf-8", "replace"))
        self.env |= read_pairs(with_files["GITHUB_ENV"])
        self.path[:0] = reversed(with_files["GITHUB_PATH"].read_text().split("\n")[:-1])
        self.summary += with_files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        outputs = read_pairs(with_files["GITHUB_OUTPUT"])
        if ended.returncode:
            raise ActionError(f"Process completed with exit code {ended.returncode}.", outputs)
        return outputs

    def _variables(self, env: Mapping[str, str], files: Mapping[str, Path]) -> dict[str, str]:
        github = self.contexts["github"]
        event = self.setting.temp / "event.json"
        event.write_text(json.dumps(github.get("event", {})))
        plain = {
            f"GITHUB_{name.upper()}": value
            for name, value in github.items()
            if isinstance(value, str) and name != "token"
        }
        base = self.setting.variables
        return {
            **base,
            **plain,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.setting.workspace),
            "GITHUB_EVENT_PATH": str(event),
            "RUNNER_TEMP": str(self.setting.temp),
            "RUNNER_OS": "Linux",
            **({"GITHUB_ACTION_PATH": str(self.action_path)} if self.action_path else {}),
            **env,
            "PATH": ":".join([*self.path, env.get("PATH", base["PATH"])]),
            **{name: str(path) for name, path in files.items()},
        }

    def _use(
        self, step: Mapping[str, Any], env: Mapping[str, str], context: Context
    ) -> Mapping[str, str]:
        name = step["uses"]
        rendered = render_value(step.get("with", {}), context)
        inputs = {key: to_string(value) for key, value in rendered.items()}
        if folder := self._find_own_action(name):
            return self._run_composite(read_document(folder / "action.yml"), inputs, env)
        action = name.partition("@")[0]
        if action not in self.setting.actions:
            raise ActionError(f"there is no stand-in for {name}")
        return self.setting.actions[action](ActionCall(action, inputs, self))

    def _find_own_action(self, name: str) -> Path | None:
        if name.startswith("./"):
            folder = self.setting.workspace / name
            if not (folder / "action.yml").is_file():
                raise ActionError(f"{name}: no action.yml; was the repository checked out?")
            return folder
        _, separator, folder_and_version = name.partition("executorch-qnn-ci/")
        return ROOT / folder_and_version.partition("@")[0] if separator else None

    def _run_composite(
        self, action: Document, passed_inputs: Mapping[str, str], env: Mapping[str, str]
    ) -> Mapping[str, str]:
        data = action.data
        inputs = {
            name: passed_inputs.get(
                name, to_string(render_value(declared.get("default", ""), self.context({})))
            )
            for name, declared in data.get("inputs", {}).items()
        }
        if unknown := passed_inputs.keys() - inputs.keys():
            self.heard.hear(f"::warning::Unexpected input(s) {', '.join(sorted(unknown))}")
        needed = (name for name, declared in data["inputs"].items() if declared.get("required"))
        if missing := [name for name in needed if not inputs[name]]:
            raise ActionError(f"Input required and not supplied: {missing[0]}")
        github = {**self.contexts["github"], "action_path": str(action.path.parent)}
        inner = JobRun(
            self.setting,
            {**self.contexts, "github": github},
            env=dict(env),
            path=self.path,
            heard=self.heard,
            ran=self.ran,
            action_path=action.path.parent,
            permissions=self.permissions,
        )
        results = inner.run_steps(data["runs"]["steps"], inputs=inputs)
        self.env |= {key: value for key, value in inner.env.items() if env.get(key) != value}
        self.summary += inner.summary
        context = inner.context(results, inputs=inputs)
        outputs = {
            name: to_string(render_value(declared["value"], context))
            for name, declared in data.get("outputs", {}).items()
        }
        if inner.status != "success":
            raise ActionError(f"{action.path.parent.name} ended as {inner.status}", outputs)
        return outputs
