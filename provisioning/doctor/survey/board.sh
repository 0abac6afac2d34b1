#!/bin/sh
# Prints which of the DSP's files the board on which it runs has, and which of the DSP's nodes its user can open.
# Its end is marked, since a connection may break.
for node in /dev/fastrpc-cdsp /dev/fastrpc-cdsp-secure /dev/adsprpc-smd /dev/adsprpc-smd-secure; do
  [ -e "$node" ] || continue
  access=no
  if [ -r "$node" ] && [ -w "$node" ]; then access=yes; fi
  echo "node=$access $node"
done
usual=/usr/lib/dsp/cdsp:/usr/lib/dsp:/usr/lib/rfsa/adsp:/dsp/cdsp:/vendor/dsp/cdsp:/vendor/lib/rfsa/adsp
set -f
IFS=':;'
# FastRPC searches the variables' folders first.
set -- $ADSP_LIBRARY_PATH $DSP_LIBRARY_PATH $usual
unset IFS
set +f
for folder in "$@" /usr/share/qcom/*/*/*/dsp/cdsp; do
  for file in "$folder"/fastrpc_shell_* "$folder"/libc++*.so* "$folder"/libQnnHtpV*Skel.so "$folder"/testsig-*.so; do
    if [ -f "$file" ]; then echo "file=$file"; fi
  done
done
cat /proc/[0-9]*/comm 2>/dev/null | grep -x '[a-z0-9]*rpcd' | sort -u | sed 's/^/daemon=/'
echo "end="
