#!/bin/sh
# Kills process groups when stdin ends, which is when the process that started this script ends.
# Each line of stdin adds (+) or removes (-) a group.
groups=" "
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${groups%% "$group" *} ${groups#* "$group" }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
