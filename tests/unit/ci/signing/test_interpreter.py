"""A Python below 3.12 is found on PATH, by pyenv or where it was made; otherwise it is said."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from ci.signing import interpreter as subject
from ci.signing.interpreter import (
    VARIABLE,
    find_interpreter,
    list_candidates,
    made_interpreter,
    make_interpreter,
    probe_interpreter,
)
from ci.signing.policy import SignerPython, read_signing_policy
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, UnfitError

SCRIPT = '#!/bin/sh\ncase "$*" in *"import imp"*) {body} ;; esac\n'


@pytest.fixture
def policy() -> SignerPython:
    return read_signing_policy().python


@pytest.fixture(autouse=True)
def this_python_is_too_new(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subject.sys, "version_info", (3, 13, 0))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))


def put_python(path: Path, version: str = "") -> Path:
    """A program that answers the probe as a Python of ``version`` does, or has no imp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(body=f"echo probed {version}" if version else "exit 1"))
    path.chmod(0o755)
    return path


def test_the_fit_one_on_path_is_found(tmp_path: Path, policy: SignerPython) -> None:
    put_python(tmp_path / "a" / "python3")
    put_python(tmp_path / "a" / "python3.11")  # a shim that leads nowhere
    wanted = put_python(tmp_path / "b" / "python3.10", "3.10.13")
    found = find_interpreter(policy, "", {"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
    assert found is not None
    assert (found.path, found.version) == (wanted, "3.10.13")


@pytest.mark.parametrize("variable", [False, True])
def test_a_relative_path_is_where_the_caller_stands(
    tmp_path: Path, policy: SignerPython, monkeypatch, variable: bool
) -> None:
    wanted = put_python(tmp_path / "made" / "python", "3.10.13")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    given = {"given": "", "environment": {VARIABLE: "made/python"}}
    found = find_interpreter(policy, **(given if variable else {"given": "./made/python"}))
    assert found is not None
    assert found.path == wanted


def test_pyenv_is_asked(tmp_path: Path, policy: SignerPython) -> None:
    root = tmp_path / "pyenv"
    wanted = put_python(root / "versions" / "3.9.18" / "bin" / "python", "3.9.18")
    pyenv = tmp_path / "bin" / "pyenv"
    pyenv.parent.mkdir()
    pyenv.write_text(
        f'#!/bin/sh\nif [ "$1" = root ]; then echo {root}; else printf "3.9.18\\n3.12.1\\n"; fi\n'
    )
    pyenv.chmod(0o755)
    found = find_interpreter(policy, "", {"PATH": str(pyenv.parent)})
    assert found is not None
    assert found.path == wanted


def test_one_that_was_made_is_found(tmp_path: Path, policy: SignerPython) -> None:
    put_python(made_interpreter(policy), policy.make)
    found = find_interpreter(policy, "", {"PATH": str(tmp_path)})
    assert found is not None
    assert found.path == made_interpreter(policy)


def test_the_variable_counts_before_path(tmp_path: Path, policy: SignerPython) -> None:
    wanted = put_python(tmp_path / "mine" / "py", "3.8.1")
    put_python(tmp_path / "a" / "python3.11", "3.11.1")
    found = find_interpreter(policy, "", {VARIABLE: str(wanted), "PATH": str(tmp_path / "a")})
    assert found is not None
    assert found.version == "3.8.1"


@pytest.mark.parametrize("version", ["", "3.12.1", "3.13.0"])
def test_given_one_that_is_not_fit_is_an_error(
    tmp_path: Path, policy: SignerPython, version: str
) -> None:
    given = put_python(tmp_path / "python", version)
    with pytest.raises(UnfitError, match="is not a Python below"):
        find_interpreter(policy, str(given), {})


def test_none_is_none(tmp_path: Path, policy: SignerPython) -> None:
    put_python(tmp_path / "python3", "3.12.7")
    assert find_interpreter(policy, "", {"PATH": str(tmp_path)}) is None


def test_this_python_is_taken_when_it_is_fit(monkeypatch, policy: SignerPython) -> None:
    monkeypatch.setattr(subject.sys, "version_info", (3, 10, 2))
    found = find_interpreter(policy, "", {})
    assert found is not None
    assert (str(found.path), found.version) == (sys.executable, "3.10.2")


def test_no_candidate_twice(tmp_path: Path, policy: SignerPython) -> None:
    put_python(tmp_path / "python3", "3.11.1")
    path = {"PATH": f"{tmp_path}:{tmp_path}"}
    assert len(list(list_candidates(policy, path))) == 1


def test_probe_of_what_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert probe_interpreter(tmp_path / "text") is None
    assert probe_interpreter(tmp_path / "none") is None


def test_failed_making_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, policy: SignerPython, monkeypatch
) -> None:
    monkeypatch.setattr(subject.sys, "executable", str(put_python(tmp_path / "broken")))
    with pytest.raises(UnfitError, match="none could be made") as caught:
        make_interpreter(policy, Progress())
    assert VARIABLE in str(caught.value)
    assert list(made_interpreter(policy).parents[2].iterdir()) == []


def test_made_python_is_published_whole(tmp_path: Path, policy: SignerPython, monkeypatch) -> None:
    """The three commands are a stand-in's: a venv, its pip, and the installer."""
    maker = tmp_path / "python"
    answer = SCRIPT.format(body=f"echo probed {policy.make}").replace("$", "\\$")
    maker.write_text(
        f'#!/bin/sh\necho "${{0##*/}} $*" >> {tmp_path}/said\n'
        'case "$2" in\n'
        'venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;\n'
        'pbs_installer) mkdir -p "$4/bin"\n'
        f'cat > "$4/bin/python3" <<END\n{answer}END\n'
        'chmod 755 "$4/bin/python3" ;;\n'
        "esac\n"
    )
    maker.chmod(0o755)
    monkeypatch.setattr(subject.sys, "executable", str(maker))
    found = make_interpreter(policy, Progress())
    assert (found.path, found.version) == (made_interpreter(policy), policy.make)
    scratch = f"{tmp_path}/home/tools/.making-"
    said = (tmp_path / "said").read_text()
    assert [re.sub(re.escape(scratch) + r"\w+", "{}", line) for line in said.splitlines()] == [
        "python -m venv {}/venv",
        f"python -m pip install --quiet {policy.installer}",
        f"python -m pbs_installer --destination {{}}/python {policy.make}",
    ]


def test_home_that_cannot_be_written_is_a_store_error(
    tmp_path: Path, policy: SignerPython, monkeypatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(StoreError, match="cannot be written") as caught:
        make_interpreter(policy, Progress())
    assert "set QNN_CI_HOME" in caught.value.fix


def words_of(error: UnfitError) -> tuple[str, str, str]:
    return error.what, error.why, error.fix


def test_words_of_what_is_not_fit(tmp_path: Path, policy: SignerPython, monkeypatch) -> None:
    with pytest.raises(UnfitError) as caught:
        find_interpreter(policy, "none-such", {})
    assert words_of(caught.value) == (
        "none-such is not a Python below 3.12",
        "the Hexagon SDK's signer imports the module imp, which Python 3.12 removed",
        "correct --signer-python or QNN_CI_SIGNER_PYTHON, or leave both out to have one found",
    )
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho first\necho last words\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(subject.sys, "executable", str(failing))
    stream = io.StringIO()
    with pytest.raises(UnfitError) as caught:
        make_interpreter(policy, Progress(stream))
    place = made_interpreter(policy).parents[1]
    made = f"no Python below 3.12 found: fetching {policy.make} into {place}"
    assert "".join(stream.getvalue().split()) == "".join(made.split())
    why = "the Hexagon SDK's signer imports imp, which Python 3.12 removed"
    assert words_of(caught.value) == (
        "no Python below 3.12 is here, and none could be made",
        f"{why}; {policy.make} could not be fetched: last words",
        "install Python 3.11 and name it with --signer-python or QNN_CI_SIGNER_PYTHON",
    )
    quiet = tmp_path / "quiet"
    quiet.write_text('#!/bin/sh\ncase "$2" in venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;; '
                     'pbs_installer) mkdir "$4" ;; esac\n')  # fmt: skip
    quiet.chmod(0o755)
    monkeypatch.setattr(subject.sys, "executable", str(quiet))
    with pytest.raises(UnfitError) as caught:
        make_interpreter(policy, Progress())
    assert caught.value.why == f"{why}; {place} holds no Python that runs"


def test_places_are_tried_from_the_newest(tmp_path: Path, policy: SignerPython) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    names = (
        "python3.12",
        "python3.11",
        "python3.10",
        "python3.7",
        "python3.6",
        "python3",
        "python",
    )
    for folder in (first, second):
        for name in names:
            put_python(folder / name)
    (second / "python3.11").chmod(0o644)
    (first / "python3.10").unlink()
    (first / "python3.10").mkdir()
    made = put_python(made_interpreter(policy))

    found = list(list_candidates(policy, {"PATH": f"{first}::{second}"}))
    assert [path.relative_to(tmp_path).as_posix() for path in found[:-1]] == [
        "a/python3.11", "b/python3.10", "a/python3.7", "b/python3.7", "a/python3", "b/python3",
        "a/python", "b/python",
    ]  # fmt: skip
    assert found[-1] == made
    assert made.as_posix().endswith(f"home/tools/python-{policy.make}/bin/python3")


def test_the_newest_of_pyenv_s_pythons_come_first(tmp_path: Path, policy: SignerPython) -> None:
    names = ("3.9.1", "3.11.2", "3.11.9", "3.12.1", "3.1.5", "2.7.18", "pypy3.9-7.3")
    root = tmp_path / "root"
    for name in names:
        put_python(root / "versions" / name / "bin" / "python")
    pyenv = put_python(tmp_path / "bin" / "pyenv")
    pyenv.write_text(
        "#!/bin/sh\n"
        f'case "$*" in root) echo {root} ;; "versions --bare") echo {" ".join(names)} ;; esac\n'
        "exit 3\n"
    )

    found = list(list_candidates(policy, {"PATH": str(pyenv.parent)}))
    assert [path.parts[-3] for path in found] == ["3.11.9", "3.11.2", "3.9.1"]


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("echo probed 3.9.1 more", "3.9.1"),
        ("echo probe 3.9.1", ""),
        ("echo probed 3.9.1; exit 1", ""),
    ],
)
def test_a_probe_s_answer_counts_with_its_word_and_its_end(
    tmp_path: Path, body: str, version: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ntest "$1 $2 $3" = "-W ignore -c" || exit 2\n{body}\n')
    program.chmod(0o755)

    found = probe_interpreter(program)
    assert found == (subject.Interpreter(program, version) if version else None)
