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

# ELF32 for x86-64 (the x32 ABI), and big-endian AArch64, which this lld cannot link.
clang --target=x86_64-linux-gnux32 -O1 -fPIC -c needed.c -o "$work/x32.o"
ld.lld -m elf32_x86_64 -shared -s -soname libx32.so "$work/x32.o" -o libx32.so
aarch64-linux-gnu-gcc -mbig-endian -O1 -fPIC -shared -nostdlib -Wl,-EB,-s,-soname,libbigendian.so \
    -Wl,-z,max-page-size=4096,-z,noseparate-code needed.c -o libbigendian.so

# Of these, tests make libraries of any name: the soname is patched, it is long enough.
clang --target=aarch64-linux-android30 -O1 -fPIC -shared -nostdlib -fuse-ld=lld -Wl,--build-id=sha1 \
    -Wl,-s -Wl,-z,max-page-size=16384 -Wl,-soname,libplaceholder_for_android.so \
    named.c android_note.S -o libplaceholder_for_android.so
clang --target=hexagon-unknown-elf -mcpu=hexagonv69 -O1 -fPIC -shared -nostdlib -fuse-ld=lld -Wl,-s \
    -Wl,-soname,libplaceholder_for_hexagon.so named.c -o libplaceholder_for_hexagon.so
