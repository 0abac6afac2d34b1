#!/bin/sh
# Compiles the manifests beside it: sh make.sh, with aapt2 and android-framework-res (Debian 12's 10.0.0).
# aapt2 10 knows no uses-native-library (API level 31), and warns.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
framework=/usr/share/android-framework-res/framework-res.apk
for source in *.xml; do
    aapt2 link --warn-manifest-validation -I "$framework" --manifest "$source" -o "$work/app.apk"
    unzip -p "$work/app.apk" AndroidManifest.xml > "${source%.xml}.bin"
done
