# Shared by the scripts in tools/: sourced, not run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"
target_dir="${CARGO_TARGET_DIR:-target}"

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# stage NAME COMMAND...: says what runs, and how long it took or that it failed.
stage() {
    local name="$1" start=$SECONDS
    shift
    trap 'echo "== '"$name"': failed after $((SECONDS - '"$start"')) s" >&2' EXIT
    echo "== $name"
    "$@" # not in a condition, so that a failure inside a function ends the script
    trap - EXIT
    echo "== $name: $((SECONDS - start)) s"
}

# want_packages PACKAGE...: installs Debian packages as root, and otherwise does without: what needs them says so.
want_packages() {
    [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || need_packages "$@"
}

# need_packages PACKAGE...: installs Debian packages as root, or says what to install.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || die "please run: sudo ${install[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    "${install[@]}"
}

# pip_install FOLDER REQUIREMENT...: installs wheels, without their dependencies, into a folder.
# All of them in one command: a second pip run does not merge into what is there.
pip_install() {
    local folder="$1"
    shift
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --no-compile --target "$folder" "$@"
}
