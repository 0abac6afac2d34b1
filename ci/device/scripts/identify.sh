#!/bin/sh
# Prints what a device is, one NAME=VALUE per line.
# shellcheck disable=SC2154 # place
echo "machine=$(uname -m)"
for name in machine soc_id; do
  if [ -r /sys/devices/soc0/$name ]; then echo "soc0_$name=$(cat /sys/devices/soc0/$name)"; fi
done
if command -v getprop >/dev/null; then
  echo "soc=$(getprop ro.soc.model)"; echo "model=$(getprop ro.product.model)"
  echo "android=$(getprop ro.build.version.release)"
fi
echo "user=$(id -un)"
for node in /dev/fastrpc-* /dev/adsprpc-smd; do
  if [ -e "$node" ]; then
    if [ -r "$node" ] && [ -w "$node" ]; then echo "dsp=$node"; else echo "closed=$node"; fi
  fi
done
for dir in /vendor/lib64 /odm/lib64 /usr/lib /usr/lib/aarch64-linux-gnu /usr/lib64; do
  for lib in "$dir"/libQnn*.so "$dir"/libcdsprpc.so*; do
    if [ -e "$lib" ]; then echo "library=$lib"; fi
  done
done
for tool in sha256sum tar; do
  if ! command -v $tool >/dev/null; then echo "lacks=$tool"; fi
done
mkdir -p "$place" || true # take.sh reports why not
# shellcheck disable=SC2046 # the words of df's last line
set -- $(df -kP "$place" | tail -n 1)
if [ "$2" != 0 ]; then echo "free_kb=$4"; fi # a file system of size 0 does not report its space
