#!/bin/sh
# Create the environment of ./nox and those of its sessions where a dev shell finds them, from their locks, using only
# /wheels.
set -eu
locks=/opt/qnn-ci/locks
mkdir -p /opt/qnn-ci/.nox
cd /opt/qnn-ci/.nox
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_NO_COMPILE=1 PIP_NO_CACHE_DIR=1
export UV_FIND_LINKS=/wheels UV_OFFLINE=1 UV_CACHE_DIR=/opt/qnn-ci/.nox/cache UV_PYTHON_DOWNLOADS=never
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1

python3 -m venv bootstrap
bootstrap/bin/python -m pip install --quiet --no-deps --require-hashes --requirement "$locks/bootstrap.txt"
cp "$locks/bootstrap.txt" bootstrap/lock.txt

python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
create() { # GROUP [LOCK...]
    group=$1
    shift
    bootstrap/bin/uv venv --quiet --no-project --python python3 "$group"
    bootstrap/bin/uv pip sync --quiet --no-index --require-hashes --python "$group/bin/python" \
        --build-constraints "$locks/$group.txt" "$locks/$group.txt"
    # As ci/nox_sessions does for an environment that is complete.
    { echo "$python" && (cd "$locks" && cat "$group.txt" "$@"); } | sha256sum | cut -c 1-64 | tr -d '\n' \
        >"$group/installed.sha256"
}
create core
torch=$(find /wheels -name 'torch-*.whl' -exec basename {} \; | cut -d - -f 2) # such as 2.13.0+cpu
builds=torch-${torch%%+*}
create lowering "$builds.txt" "$builds-cuda.txt"
grep "^torch==$torch " "$locks/$builds.txt" >torch.txt || echo "torch==$torch" >torch.txt
bootstrap/bin/uv pip install --quiet --no-index --no-deps --python lowering/bin/python --requirement torch.txt

rm -rf cache torch.txt
# uv notes in each package when its wheel was copied, which differs between two builds.
find . -path '*.dist-info/uv_cache.json' -delete
find . -path '*.dist-info/RECORD' -exec sed -i '/\.dist-info\/uv_cache\.json,/d' {} +
find . -name __pycache__ -type d -prune -exec rm -rf {} +
chmod -R a+rX .
