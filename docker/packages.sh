#!/bin/sh
# packages.sh IMAGE SNAPSHOT: install the packages of an image so that two builds leave equal files.
#
# With a SNAPSHOT (Ubuntu's 20260925T090000Z form) every package has the version of that moment.
# Without one, apt.lock (name=version a line) is what may be installed, where there is one.
set -eu
image=$1
snapshot=$2
here=/opt/qnn-ci/build
export DEBIAN_FRONTEND=noninteractive

settings=/etc/apt/apt.conf.d/90qnn-ci
printf 'APT::Install-Recommends "false";\nAcquire::Retries "3";\n' >"$settings"
if [ -n "$snapshot" ]; then
    printf 'APT::Snapshot "%s";\n' "$snapshot" >>"$settings"
    # The snapshot is served by https, and a bare base has no certificates yet. What apt fetches
    # is signed, so that an unchecked connection can withhold packages but not change them.
    if [ ! -e /etc/ssl/certs/ca-certificates.crt ]; then
        apt-get -qq -o Acquire::https::Verify-Peer=false update
        apt-get -qq -y -o Acquire::https::Verify-Peer=false install ca-certificates
    fi
fi
apt-get -qq update
names=$(grep -v '^#' "$here/$image.txt")
if [ -s "$here/apt.lock" ]; then
    names=$(cat "$here/apt.lock")
fi
# shellcheck disable=SC2086 # one word a package
apt-get -qq -y install $names

mkdir -p /opt/qnn-ci/packages
dpkg-query -W -f '${Package}=${Version}\n' | sort >"/opt/qnn-ci/packages/$image.txt"

# Times, logs and caches differ from build to build and are of no use.
apt-get -qq clean
rm -rf "$here" /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache /var/cache/apt/*.bin \
    /var/cache/debconf/*-old /var/lib/dpkg/*-old /root/.cache /tmp/*
find /usr/lib /usr/share -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
: >/etc/machine-id
