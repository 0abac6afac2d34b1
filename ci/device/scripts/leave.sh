#!/bin/sh
# Gives up the lease of a device.
# shellcheck disable=SC2034,SC2154,SC2164 # place, me
cd "$place"; read -r until owner < lease/held && [ "$owner" = "$me" ] || exit 0
mv lease old."$me" && rm -r old."$me"
