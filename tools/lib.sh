# Shared by the scripts in tools/: sourced, not run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"
target_dir="${CARGO_TARGET_DIR:-target}"
# What the compilers of kernels and executors have made, for all clones.
export OXCCL_BUILD_CACHE="${OXCCL_BUILD_CACHE-${XDG_CACHE_HOME:-$HOME/.cache}/oxccl/machine}"

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# What a script with stages leaves behind, it ends here.
leave() { :; }

# stage NAME COMMAND...: says what runs, and how long it took or that it failed.
stage() {
    local name="$1" start=$SECONDS
    shift
    trap 'echo "== '"$name"': failed after $((SECONDS - '"$start"')) s" >&2; leave' EXIT
    echo "== $name"
    "$@" # not in a condition, so that a failure inside a function ends the script
    trap leave EXIT
    echo "== $name: $((SECONDS - start)) s"
}

# want_packages WHAT PACKAGE...: installs packages that not everything needs as root, and otherwise
# says what goes without them.
want_packages() {
    local what="$1"
    shift
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        need_packages "$@"
    else
        find_missing "$@"
        [ "${#missing[@]}" -eq 0 ] || echo "$(basename "$0"): $what go without; to have them, $(remedy)" >&2
    fi
}

# need_packages PACKAGE...: installs packages as root, or says what to install.
need_packages() {
    find_missing "$@"
    [ "${#missing[@]}" -eq 0 ] && return
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || die "please $(remedy)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# find_missing PACKAGE...: sets `missing` to those that are not installed. The names are Debian's
# and Ubuntu's.
find_missing() {
    local package
    missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
}

# How somebody with the right to do so installs what is missing.
remedy() {
    if command -v apt-get >/dev/null; then
        echo "run: sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    else
        echo "install what Debian calls: ${missing[*]}"
    fi
}

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

# pip_install FOLDER REQUIREMENT...: installs wheels, without their dependencies, into a folder.
# All of them in one command: a second pip run does not merge into what is there.
pip_install() {
    local folder="$1"
    shift
    has_pip || need_packages python3-pip
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --no-compile --target "$folder" "$@"
}
