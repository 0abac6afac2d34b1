#!/bin/sh
# Makes the libraries beside it: sh make.sh, with clang and lld (made with Debian's 14.0.6).
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# make NAME TARGET [FLAG...]: NAME needs needed@GLIBC_2.9 of libneeded.so; neither is linked with a C library.
make() {
    name=$1 target=$2
    shift 2
    clang --target="$target" -O1 -fPIC -shared -nostdlib -fuse-ld=lld -Wl,-soname,libneeded.so \
        -Wl,--version-script,versions.map needed.c -o "$work/libneeded.so"
    clang --target="$target" -O1 -fPIC -shared -nostdlib -fuse-ld=lld -Wl,-soname,"$name" \
        -Wl,--build-id=sha1 -Wl,-s "$@" library.c "$work/libneeded.so" -o "$name"
}

make libx86.so x86_64-linux-gnu
make libaarch64.so aarch64-linux-gnu -Wl,-rpath,'$ORIGIN/..:/home/builder/out'
make libandroid.so aarch64-linux-android30 android_note.S -Wl,-z,max-page-size=4096
make libandroid16k.so aarch64-linux-android30 android_note.S -Wl,-z,max-page-size=16384
make libexecstack.so x86_64-linux-gnu -Wl,-z,execstack
make libhexagon.so hexagon-unknown-elf -mcpu=hexagonv69
