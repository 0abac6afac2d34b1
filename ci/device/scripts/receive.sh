#!/bin/sh
# Unpacks a tar archive from stdin into $directory. Files get their names only if all of them match
# the list of their SHA-256.
# shellcheck disable=SC2154 # directory, part, sums, damaged
cd "$directory" && mkdir "$part" && tar -x -f - -C "$part" && cd "$part" || exit 1
sha256sum -c "$sums" > /dev/null || exit "$damaged"
chmod 755 ./* && mv -f ./* .. && cd .. && rm -rf "$part"
