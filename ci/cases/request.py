"""What a call of a verb asks for, as one value that nothing changes afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from provisioning.artifacts.choice import QnnChoice


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a call of a verb asks for: its options, the policy that it found, and the QNN that the
    environment variables choose. ci.verbs.requests makes it once, from the parsed command line, and
    everything below the verbs reads it. A lane adds its own options in a subclass."""

    session: str  # the name of the lane or verb, and of its directory in ``reports``
    # Which cases
    models: tuple[str, ...] | None = ()  # globs; None if the verb does not select the policy's
    schemes: tuple[str, ...] = ()
    socs: tuple[str, ...] = ()
    # Whether the policy's schemes of other runtimes stand for those of the lane
    translate_schemes: bool = False
    lists: bool = False  # whether the choices are listed, and nothing is run
    # Which policy
    policy: Path | None = None  # None for this project's own
    is_policy_typed: bool = False  # it was passed as an option, and not found
    is_own_policy_typed: bool = False  # `--policy default` was passed
    # How
    judges: bool = False  # whether the cases are judged, and not only lowered and run
    timeout_s: float = 300.0  # of each job: compiling, running, or measuring the metric
    jobs: int = 1  # cases at a time
    offline: bool = False
    use_cache: bool = True
    plain: bool = False  # without this project's patches to torch
    strict_noise: bool = False
    estimate: bool = False
    diagnose: float | None = None  # seconds of experiments for a red case; 0 for none
    # With which tools
    choice: QnnChoice = field(default_factory=QnnChoice)
    executorch: str = ""  # the version that the environment must have; "" for any
    # Where the results go
    reports: Path = Path("reports")
    keep: Path | None = None  # gets a directory per case, with everything that belongs to it
    record: bool = False  # whether the figures are recorded as baselines
    log_level: str = ""
    base: Path | None = None  # an earlier report to compare with
    sarif: Path | None = None
    # What was typed, for reports
    command: str = ""  # repeats the call without the options that select cases
    mending: str = ""  # the start of the command that mends a case
    shared_words: tuple[str, ...] = ()  # the options that all shards of a run must have in common

    @property
    def directory(self) -> Path:
        """Return the directory of the call's report."""
        return self.reports / self.session
