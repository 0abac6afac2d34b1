#!/bin/sh
# Removes what this project put on a device. --place may name a directory with other files, which
# stay.
# shellcheck disable=SC2154,SC2164 # place
[ -d "$place" ] || exit 0
( cd "$place"; ours=
  for one in bundles/???????????????? lease/held new.*/held; do
    if [ -e "$one" ]; then ours=1; fi
  done
  if [ -z "$ours" ] && [ -n "$(ls -A)" ]; then exit 90; fi
  rm -rf bundles cases lease running new.* old.* )
rmdir "$place" 2>/dev/null || ls -A "$place"
