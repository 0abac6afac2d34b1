"""A whole workflow, executed here: jobs in the order of their needs, each of a matrix."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.workflows.document import ROOT, Document, read_document
from tests.workflows.expressions import Context, ExpressionError, judge, render_value, to_string
from tests.workflows.job import JobRun, Setting

# What may change before a job of a matrix runs: a test plants its faults here.
Prepare = Callable[[str, Mapping[str, Any], Setting], None]


@dataclass
class JobResult:
    """How a job ended: ``runs`` are the rows of its matrix, or the one."""

    result: str
    outputs: dict[str, str] = field(default_factory=dict)
    runs: list[JobRun] = field(default_factory=list)
    error: str = ""

    def as_context(self) -> dict[str, Any]:
        return {"result": self.result, "outputs": self.outputs}


@dataclass
class WorkflowRun:
    """A workflow at work; ``forced`` are results of jobs that GitHub ended itself, ``results`` at
    first those of jobs that ran before, and ``only`` the jobs to run of the others, if not all."""

    document: Document
    setting: Setting
    inputs: Mapping[str, Any] = field(default_factory=dict)
    prepare: Prepare = lambda name, row, setting: None
    forced: Mapping[str, str] = field(default_factory=dict)
    only: Collection[str] = ()
    results: dict[str, JobResult] = field(default_factory=dict)

    def run(self) -> dict[str, JobResult]:
        """Every job, after those that it needs."""
        waiting = {
            name: job
            for name, job in self.document.jobs.items()
            if name not in self.results and (not self.only or name in self.only)
        }
        while waiting:
            ready = [name for name in waiting if self._needs(name).issubset(self.results)]
            assert ready, f"jobs wait for each other: {', '.join(waiting)}"
            for name in ready:
                self.results[name] = self._run_job(name, waiting.pop(name))
        return self.results

    def _needs(self, name: str) -> set[str]:
        needs = self.document.jobs[name].get("needs", [])
        return {needs} if isinstance(needs, str) else set(needs)

    def _run_job(self, name: str, job: Mapping[str, Any]) -> JobResult:
        needed = {job_name: self.results[job_name] for job_name in self._needs(name)}
        values = self._values(
            {job_name: result.as_context() for job_name, result in needed.items()}
        )
        context = Context(values, _join_status([result.result for result in needed.values()]))
        if not judge(job.get("if"), context):
            return JobResult("skipped")
        if name in self.forced:
            return JobResult(self.forced[name])
        try:
            rows = list(expand_matrix(job.get("strategy", {}).get("matrix", {}), context))
        except ExpressionError as error:
            return JobResult("failure", error=str(error))
        job_result = JobResult("success")
        for row in rows:
            run = self._run_row(name, job, values, row, job_result)
            job_result.runs.append(run)
        job_result.result = _join_result([run.status for run in job_result.runs])
        return job_result

    def _values(self, needs: Mapping[str, Any]) -> dict[str, Any]:
        setting = self.setting
        return {
            "github": setting.github,
            "inputs": self.inputs,
            "vars": setting.vars,
            "secrets": setting.secrets,
            "needs": needs,
            "runner": {"temp": str(setting.temp), "os": "Linux", "arch": "X64"},
            "strategy": {},
            "matrix": {},
        }

    def _run_row(
        self,
        name: str,
        job: Mapping[str, Any],
        values: Mapping[str, Any],
        row: Mapping[str, Any],
        job_result: JobResult,
    ) -> JobRun:
        setting = self.setting
        for folder in (setting.workspace, setting.temp):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.prepare(name, row, setting)
        permissions = job.get("permissions", self.document.data.get("permissions", {}))
        run = JobRun(setting, {**values, "matrix": row}, permissions=permissions)
        defaults = (self.document.data.get("defaults"), job.get("defaults"))
        for default in defaults:
            run.shell = (default or {}).get("run", {}).get("shell", run.shell)
        for variables in (self.document.data.get("env", {}), job.get("env", {})):
            rendered = render_value(variables, run.context({}))
            run.env |= {key: to_string(value) for key, value in rendered.items()}
        if "uses" in job:
            self._call(job, run, job_result)
            return run
        steps = run.run_steps(job["steps"])
        context = run.context(steps)
        for key, text in job.get("outputs", {}).items():
            job_result.outputs[key] = to_string(render_value(text, context))
        return run

    def _call(self, job: Mapping[str, Any], run: JobRun, job_result: JobResult) -> None:
        """A reusable workflow of this repository."""
        document = read_document(ROOT / job["uses"].removeprefix("$/"))
        declared = document.triggers["workflow_call"] or {}
        rendered = render_value(job.get("with", {}), run.context({}))
        inputs = {
            key: declaration.get("default", "")
            for key, declaration in declared.get("inputs", {}).items()
        }
        assert not rendered.keys() - inputs.keys(), (
            f"no such inputs: {rendered.keys() - inputs.keys()}"
        )
        for inner_job in document.jobs.values():
            wider = set(inner_job["permissions"].items()) - set(run.permissions.items())
            assert not wider, f"the caller's job does not allow {wider}"
        inner = WorkflowRun(document, self.setting, {**inputs, **rendered}, self.prepare)
        results = inner.run()
        run.status = _join_result([result.result for result in results.values()])
        job_result.runs += [run_of_job for result in results.values() for run_of_job in result.runs]


def expand_matrix(matrix: Any, context: Context) -> Iterator[dict[str, Any]]:
    """The rows of a matrix; one empty row where there is none. Raises ExpressionError."""
    rendered = render_value(matrix, context)
    if rendered == {}:
        yield {}
        return
    if not isinstance(rendered, Mapping):
        raise ExpressionError("a matrix that is not an object")
    axes = {key: value for key, value in rendered.items() if key not in {"include", "exclude"}}
    rows = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    combinations = [row for row in rows if row] + [dict(row) for row in rendered.get("include", [])]
    if not combinations:
        raise ExpressionError("Matrix must define at least one vector")
    yield from combinations


def _join_status(results: list[str]) -> str:
    """What success() and failure() of a job ask about."""
    if "failure" in results:
        return "failure"
    if "cancelled" in results:
        return "cancelled"
    return "skipped" if "skipped" in results else "success"


def _join_result(results: list[str]) -> str:
    ended = [result for result in results if result != "skipped"]
    if "failure" in ended:
        return "failure"
    return "cancelled" if "cancelled" in ended else "success"
