#!/bin/sh
# Install the packages of lock files into a virtual environment: tools/install.sh VENV LOCK...
#
# Nothing is fetched that the locks do not name. uv does it in a fraction of pip's time; where there
# is no uv for a platform, pip does it.
set -eu
venv=$1
shift
here=$(dirname "$0")

with_pip() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}
with_uv() {
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"
}

[ -x "$venv/bin/uv" ] ||
    with_pip --require-hashes --only-binary :all: --requirement "$here/installer.lock" ||
    echo 'uv is not to be had here: pip installs, which takes longer' >&2
if [ -x "$venv/bin/uv" ]; then
    # PySpark comes as a source package of 450 MB. Its wheel is unpacked at once, so that compressing it
    # would be four fifths of the work for nothing.
    install="with_uv --config-settings-package pyspark:--build-option=--compression=stored"
else
    install=with_pip
fi
for lock; do
    # What builds a source package is in a lock before the one that names the package.
    $install --require-hashes --no-build-isolation --requirement "$lock"
done
$install --no-deps --no-build-isolation --editable .
