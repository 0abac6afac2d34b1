#!/bin/sh
# Starts a dev shell: sets the caller's umask, links the image's environments into the checkout's
# .nox, sets the variables of the image's profile, prints a line from the doctor, and runs the command.
set -eu
umask "${QNN_CI_UMASK:-022}"
root=${QNN_CI_CHECKOUT:-}

# The caller keeps this pipe open while it runs; if it closes, everything here has to stop.
if [ -p /run/qnn-ci-caller ]; then
    (read -r _ </run/qnn-ci-caller || kill -KILL -1) &
fi

if [ -n "$root" ] && [ -w "$root/.nox" ]; then
    for made in /opt/qnn-ci/.nox/*/; do
        link="$root/.nox/$(basename "$made")"
        [ -e "$link" ] || { rm -f "$link"; ln -s "${made%/}" "$link"; }
    done
fi

python=/opt/qnn-ci/.nox/lowering/bin/python
if [ -n "$root" ] && [ -n "${QNN_CI_PROFILE:-}" ]; then
    if variables=$(cd "$root" && $python -m provisioning env "$QNN_CI_PROFILE" --offline 2>/dev/null); then
        eval "$variables"
        verdict=$(cd "$root" && $python -m provisioning doctor "$QNN_CI_PROFILE" 2>/dev/null | head -n 1) || true
        echo "doctor: ${verdict:-no verdict}" >&2
    else
        echo "doctor: profile $QNN_CI_PROFILE is not in the store; run ./nox -s provision -- $QNN_CI_PROFILE" >&2
    fi
fi
exec "$@"
