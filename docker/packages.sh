#!/bin/sh
# packages.sh IMAGE SNAPSHOT: install an image's packages so that two builds produce the same files.
#
# With a SNAPSHOT (such as Ubuntu's 20260925T090000Z), every package has the version of that time.
# Without one, apt.lock (name=version per line), if it exists, lists the packages to install.
set -eu
image=$1
snapshot=$2
here=/opt/qnn-ci/build
export DEBIAN_FRONTEND=noninteractive

settings=/etc/apt/apt.conf.d/90qnn-ci
printf 'APT::Install-Recommends "false";\nAcquire::Retries "3";\n' >"$settings"
if [ -n "$snapshot" ]; then
    printf 'APT::Snapshot "%s";\n' "$snapshot" >>"$settings"
    # The snapshot uses https, and a bare base has no certificates yet. Packages are signed, so an
    # unverified connection can withhold them but not change them.
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
# shellcheck disable=SC2086 # one word per package
apt-get -qq -y install $names

mkdir -p /opt/qnn-ci/packages
dpkg-query -W -f '${Package}=${Version}\n' | sort >"/opt/qnn-ci/packages/$image.txt"

# Times, logs and caches differ between builds and are useless.
apt-get -qq clean
rm -rf "$here" /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache /var/cache/apt/*.bin \
    /var/cache/debconf/*-old /var/lib/dpkg/*-old /root/.cache /tmp/*
find /usr/lib /usr/share -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
: >/etc/machine-id
