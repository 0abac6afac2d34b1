#!/bin/sh
# Prints facts about the phone on which it runs, and about the QNN libraries in $directory.
# Uses only toybox, which every Android since 6 has. Shells of old versions print \r\n.
# shellcheck disable=SC2154 # directory
echo "soc=$(getprop ro.soc.model)"
echo "android=$(getprop ro.build.version.release)"
echo "api=$(getprop ro.build.version.sdk)"
echo "page=$(getconf PAGE_SIZE 2>/dev/null)"
echo "uid=$(id -u)"
echo "su=$(su 0 id -u 2>/dev/null)"
df -k "$directory" 2>/dev/null | tail -n 1 | while read -r _ _ _ free _; do echo "free=$free"; done
for file in "$directory"/libQnn*.so; do
  [ -f "$file" ] || continue
  build=$(grep -aoE 'v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{12}' "$file" | head -n 1)
  echo "library=$file $build"
done
