#!/bin/sh
# What a dev shell starts with: the caller's umask, the image's environments in the checkout's
# .nox, the variables of the image's profile, one line from the doctor, then the command.
set -eu
umask "${QNN_CI_UMASK:-022}"
root=${QNN_CI_CHECKOUT:-}

# The caller holds this pipe open for as long as it lives; without it nothing may go on here.
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
        echo "doctor: profile $QNN_CI_PROFILE is not in the store: ./nox -s provision -- $QNN_CI_PROFILE" >&2
    fi
fi
exec "$@"
