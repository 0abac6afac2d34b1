#!/bin/sh
# Create nox and the shared environments where a dev shell finds them, using only /wheels.
set -eu
cd /opt/qnn-ci
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_NO_COMPILE=1 PIP_NO_CACHE_DIR=1
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 VIRTUALENV_NO_PERIODIC_UPDATE=1
QNN_CI_TORCH_INDEX=none ./nox -s environments

# ./nox creates its environment under a name with a process ID, and some files contain that name.
grep -rlIE 'bootstrap\.[0-9]+' .nox/bootstrap | xargs sed -i -E 's#bootstrap\.[0-9]+#bootstrap#g'
find .nox/bootstrap -name RECORD -exec sed -i '/^\.\..*\/bin\//d' {} +
find .nox -name __pycache__ -type d -prune -exec rm -rf {} +
find .nox \( -name '*.lock' -o -name 'nox-*' \) -type f ! -name nox-version -delete
chmod -R a+rX .nox
