"""``python -m tests.mutants.generate JOBS``: mutmut's mutants below ./mutants, without judging."""

from __future__ import annotations

import sys
from pathlib import Path

from mutmut.__main__ import create_mutants
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir


def main(jobs: int) -> None:
    """Write the mutants of ./setup.cfg's files; verdicts stay where a function is as it was."""
    Path("mutants").mkdir(exist_ok=True)
    copy_src_dir()
    copy_also_copy_files()
    create_mutants(jobs)


if __name__ == "__main__":
    main(int(sys.argv[1]))
