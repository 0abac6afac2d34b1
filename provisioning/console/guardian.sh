#!/bin/sh
# Kills processes when stdin ends, which is when the process that started this script ends. Each line
# of stdin adds (+) or removes (-) a process group, or a pipe, whose holders are killed.
names=" "
while read -r sign name; do
  case $sign in
    +) names="$names$name " ;;
    -) names="${names%% "$name" *} ${names#* "$name" }" ;;
  esac
done

kill_holders() { # of the pipe $1
  ls -l /proc/[0-9]*/fd 2> /dev/null | while read -r line; do
    case $line in
      /proc/*/fd:) process=${line#/proc/} process=${process%/fd:} ;;
      *" -> $1") kill -s KILL -- "-$process" || kill -s KILL "$process" ;;
    esac
  done
}

for name in $names; do
  case $name in
    pipe:*) kill_holders "$name" ;;
    *) kill -s KILL -- "-$name" ;;
  esac
done
