#!/bin/sh
# Takes or extends the lease of a device.
# shellcheck disable=SC2154,SC2164 # place, me, gone, seconds
#
# A lease is the directory "lease" with the file "held". The file has one line: the time at which
# the lease expires, and its owner. Both are put in place by a rename, so that an interruption
# leaves no partial lease. If several computers see that a lease has expired, each tries to create
# the same directory in it, which is named after that time and the current minute. The one that
# succeeds takes over the lease. This directory stays, because the others may try later. If the
# computer is interrupted, another one can succeed in the next minute. The exit code is 90 or 91 if
# another computer has the lease or is taking it, and 1 if this user may not write here.
mkdir -p "$place" && cd "$place" || exit 1
now=$(date +%s); until=; owner=
line="$((now + seconds)) $me"
if [ -f lease/held ]; then read -r until owner < lease/held; fi
if [ -d lease ]; then
  if [ -z "$owner" ] || [ "$owner" = "$gone" ] || [ "$now" -ge "$until" ]; then
    turn=lease/$until.$((now / 60))
    if ! mkdir "$turn"; then
      if [ -d lease ] && [ ! -d "$turn" ]; then exit 1; fi
      exit 91
    fi
    late=; found=; if [ -f lease/held ]; then read -r late found < lease/held; fi
    if [ "$late $found" != "$until $owner" ]; then exit 91; fi
  elif [ "$owner" != "$me" ]; then
    echo "$owner $((until - now))"; exit 90
  fi
  echo "$line" > "lease/$me" && mv "lease/$me" lease/held; exit
fi
mkdir "new.$me" && echo "$line" > "new.$me/held" || exit 1
if ! mv "new.$me" lease || [ -d "lease/new.$me" ]; then
  rm -rf "new.$me" "lease/new.$me"; exit 91
fi
