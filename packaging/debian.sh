#!/usr/bin/env bash
# A Debian package of a built `ramfold`: packaging/debian.sh BINARY DIRECTORY puts ramfold_VERSION_ARCH.deb into the
# directory and prints its name. Needs dpkg-deb, strip and gzip; nothing of the machine changes, and no root is needed.
#
# Man pages and completions are made by the binary itself. The libraries that it puts into programs travel inside it,
# so what they want of libc is looked for in all of its bytes, not only in its own table.
set -euo pipefail
(($# == 2)) || { echo "usage: $0 BINARY DIRECTORY" >&2; exit 2; }
binary=$(realpath "$1")
directory=$(realpath "$2")
cd "$(dirname "$0")/.."
umask 022
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

version=$("$binary" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
host=${repository#*//}
maintainer="The ramfold developers <ramfold@${host%%/*}>"
libc=$(grep -ao 'GLIBC_2\.[0-9]*' "$binary" | sort -Vu | tail -n 1)
libc=${libc#GLIBC_}

mkdir -p "$root"/{DEBIAN,usr/bin}
chmod 755 "$root"
share=$root/usr/share
doc=$share/doc/ramfold
mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d} "$doc"

install -m 755 "$binary" "$root/usr/bin/ramfold"
strip --remove-section=.comment --remove-section=.note "$root/usr/bin/ramfold"
"$binary" man "$share/man/man1"
gzip -9n "$share"/man/man1/*
install -Dm 644 -t "$root/usr/lib/systemd/system" packaging/systemd/*
"$binary" completions bash >"$share/bash-completion/completions/ramfold"
"$binary" completions zsh >"$share/zsh/vendor-completions/_ramfold"
"$binary" completions fish >"$share/fish/vendor_completions.d/ramfold.fish"

{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: ramfold"
    echo "Source: $repository"
    echo
    echo "Files: *"
    echo "Copyright: 2026 The ramfold developers"
    echo "License: MIT or Apache-2.0"
    echo
    echo "License: MIT"
    sed -n '/^Permission/,$ { s/^$/./; s/^/ /; p }' LICENSE-MIT
    echo
    echo "License: Apache-2.0"
    echo " On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0."
} >"$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/CHANGELOG.md.gz"
gzip -9n >"$doc/changelog.gz" <<END
ramfold ($version) unstable; urgency=medium

  * What changed is told in CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date -R -r CHANGELOG.md)
END

cat >"$root/DEBIAN/control" <<END
Package: ramfold
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1
Section: utils
Priority: optional
Homepage: $repository
Description: compressed memory for programs, in user space
 Holds the memory of a program and of all that it starts within a limit: cold
 pages are compressed where they are, the coldest go to a file, and all come
 back when they are touched. It needs no kernel module, no swap device and no
 change to the program.
 .
 It also tells what compression would make of a running program's memory, and
 advises on settings for itself and for the kernel's zram and zswap.
END
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

package=$directory/ramfold_${version}_$arch.deb
dpkg-deb --build --root-owner-group "$root" "$package" >/dev/null
echo "$package"
