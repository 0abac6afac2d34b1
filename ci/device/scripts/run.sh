#!/bin/sh
# Runs the program "$1" of the bundle in $directory on the inputs in $place, with the other arguments,
# and prints a tar archive with what it wrote. If $launcher is not empty, it runs the program.
# shellcheck disable=SC2034,SC2154,SC2164 # ci.device.runner assigns the other variables
#
# The device enforces the time limit, so that the runner stops even if the computer disconnects.
# Processes that an earlier, killed call left running are ended first, because they write to the
# same files. VmHWM is the largest resident memory so far; it is read often while the program loads.
about='qnn|fastrpc|adsprpc|cdsp|remoteproc|executorch' # lines of the system's log about the DSP
running=../../running # each line has a signal and a process
case $directory in /*) ;; *) directory=$PWD/$directory ;; esac
case $launcher in /*) ;; */*) launcher=$PWD/$launcher ;; esac
cd "$place"; here=$(cd .. && pwd -P)
cat "$running" 2>/dev/null | while read -r signal old; do
  case $(readlink "/proc/$old/cwd") in "$here"/*) kill "-$signal" "$old" || true ;; esac
done
# shellcheck disable=SC2086 # a list of names
rm -rf "$outputs" "$log" $result_files; mkdir "$outputs"
export LD_LIBRARY_PATH="$directory:$LD_LIBRARY_PATH" ADSP_LIBRARY_PATH="$directory"
feel() {
  for zone in /sys/class/thermal/thermal_zone*; do
    name=; degrees=
    { read -r name < "$zone/type"; read -r degrees < "$zone/temp"; } 2>/dev/null || continue
    echo "zone $name $degrees"
  done
  for zone in /sys/class/thermal/cooling_device*; do
    name=; state=
    { read -r name < "$zone/type"; read -r state < "$zone/cur_state"; } 2>/dev/null || continue
    echo "cooling $name $state"
  done
  if command -v dumpsys >/dev/null; then
    dumpsys thermalservice 2>/dev/null | sed -n 's/^ *Thermal Status: */status of_system /p'
  fi
}
feel > "$before" 2>/dev/null || true
since=$(date '+%m-%d %H:%M:%S.000')
program=$1; shift
( exec ${launcher:+"$launcher"} "$directory/$program" "$@" ) > "$log" 2>&1 < /dev/null &
runner=$!
( trap 'kill $!; exit' TERM; sleep "$limit" & wait $!; touch "$late"; kill -9 $runner
) > /dev/null 2>&1 < /dev/null &
watch=$!
{ sh -c 'echo 9 $PPID'; echo 9 $runner; echo TERM $watch; } > "$running"
( count=0
  while [ -e /proc/$runner ]; do
    while read -r name size unit; do
      if [ "$name" = VmHWM: ]; then echo "$size"; fi
    done < /proc/$runner/status
    count=$((count + 1))
    if [ $count -lt 50 ]; then sleep 0.02 || sleep 1; else sleep 1; fi
  done > "$memory" ) > /dev/null 2>&1 < /dev/null &
gauge=$!
wait "$runner" && ended=0 || ended=$?
kill $watch $gauge 2>/dev/null || true
feel > "$after" 2>/dev/null || true
if [ "$ended" != 0 ] || [ -z "$(ls "$outputs")" ]; then
  if command -v logcat >/dev/null; then logcat -d -v brief -T "$since"; else dmesg; fi 2>/dev/null |
    grep -iE "$about" | tail -n 100 > "$system" || true
fi
size=$(wc -c < "$log"); size=${size%???}; left=$((${size:-0} - most_kb))
if [ $left -gt 0 ]; then
  { head -c "$half" "$log"; echo; echo "[$left kB are left out]"; tail -c "$half" "$log"; } > "$log.cut"
  mv "$log.cut" "$log"
fi
echo "$ended" > "$code"
# shellcheck disable=SC2046,SC2086 # lists of names
tar -c -f - "$outputs" "$log" $(ls $result_files 2>/dev/null) "$code"
