#!/bin/sh
# Runs each case: results/CASE gets its outputs, log.txt and code.txt, the runner's exit code.
cd "$(dirname "$0")" || exit 1
here=$PWD
chmod 755 files/* || exit 1
export LD_LIBRARY_PATH="$here/files" ADSP_LIBRARY_PATH="$here/files"
failed=0
rm -rf results results.tar
for case in cases/*; do
  out=$here/results/${case##*/}
  mkdir -p "$out/outputs"
  ( cd "$case" && "$here/files/@runner@" --model_path=program.pte --input_list_path=input_list.txt \
    --output_folder_path="$out/outputs" ) > "$out/log.txt" 2>&1 < /dev/null
  code=$?
  echo $code > "$out/code.txt"
  echo "${case##*/}: $code"
  [ $code = 0 ] || failed=1
done
tar -c -f results.tar results
exit $failed
