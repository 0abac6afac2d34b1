"""A Python whose environments have the pip that the tests have; venv takes seconds for its own."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

PYTHON = """#!/bin/sh
if [ "$2" != venv ]; then exec {python} "$@"; fi
{python} "$@" --without-pip
for target in "$@"; do :; done
for folder in "$target"/lib/python*/site-packages; do echo {packages} > "$folder/tests.pth"; done
"""


def make_python(folder: Path) -> Path:
    """Write that program into a new folder, with what it needs."""
    program, packages = folder / "python3", folder / "packages"
    packages.mkdir(parents=True)
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib"), "pip"))
    program.write_text(PYTHON.format(python=sys.executable, packages=packages))
    program.chmod(0o755)
    return program
