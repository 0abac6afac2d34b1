"""``python -m tests.workflows``: lint the workflows, as ``nox -s lint`` does."""

import sys

from tests.workflows.lint import main

sys.exit(main())
