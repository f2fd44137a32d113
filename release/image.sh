#!/usr/bin/env bash
# Builds the variants of the container image: `make image` and `make image-offline`.
#   release/image.sh [--offline] VARIANT...
# Online it uses docker, podman or buildah, and the base python:3.11-slim of an image registry. Offline
# it makes a base from Debian's packages with mmdebstrap, and uses buildah without a daemon.
set -euo pipefail
cd "$(dirname "$0")/.."

offline=
if [ "${1:-}" = --offline ]; then
    offline=1
    shift
fi
python=${PYTHON:-python3}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' gateway/__init__.py)
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
wheel=$(ls dist/tensor_gateway-"$version"-*manylinux*.whl)
machine=$(uname -m)

# The packages of a lock for Python 3.11, and the wheel.
fetch() {
    local variant=$1 platforms=()
    for libc in 2014 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34 _2_35 _2_36; do
        platforms+=(--platform "manylinux${libc}_${machine}")
    done
    mkdir -p "dist/image/$variant"
    rm -f "dist/image/$variant"/tensor_gateway-*.whl
    "$python" -m pip download --quiet --require-hashes --requirement "requirements/$variant.lock" \
        --dest "dist/image/$variant" --no-deps --only-binary :all: \
        --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none "${platforms[@]}"
    cp "$wheel" "dist/image/$variant/"
}

need() {
    for tool in "$@"; do
        command -v "$tool" > /dev/null || { echo "$tool is missing: apt-get install $tool" >&2; exit 1; }
    done
}

# An image of Debian with some packages, unless it is there.
make_base() {
    local image=$1 packages=$2 container
    buildah inspect --type image "$image" > /dev/null 2>&1 && return
    SOURCE_DATE_EPOCH=$epoch mmdebstrap --quiet --variant=minbase --include="$packages" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$work/base.tar"
    container=$(buildah from --format docker scratch)
    buildah add --quiet "$container" "$work/base.tar" / > /dev/null
    buildah commit --quiet --format docker --timestamp "$epoch" "$container" "$image" > /dev/null
    buildah rm "$container" > /dev/null
    rm "$work/base.tar"
}

arguments=(--build-arg "VERSION=$version" --build-arg "COMMIT=$commit")
if [ -n "$offline" ]; then
    need mmdebstrap buildah
    # Neither a daemon nor another file system than the one there is.
    export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
    name=localhost/tensor-gateway-base
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_base "$name:bookworm" python3,python3-venv,ca-certificates
    make_base "$name:bookworm-build" python3,python3-venv,binutils
    arguments+=(--build-arg "BASE=$name:bookworm" --build-arg "BUILD_BASE=$name:bookworm-build")
    engine=buildah
else
    # The first one that works: docker may be installed without its daemon.
    engine=${ENGINE:-$(for each in docker podman buildah; do
        "$each" info > /dev/null 2>&1 && command -v "$each" && break
    done || true)}
    [ -n "$engine" ] || { echo "docker (with its daemon), podman or buildah is required" >&2; exit 1; }
fi
# Without this format the health check would be lost.
case $engine in
    *buildah) build=("$engine" build --format docker --timestamp "$epoch") ;;
    *podman) build=("$engine" build --format docker --timestamp "$epoch") ;;
    *) build=("$engine" build) ;;
esac

for variant in "$@"; do
    fetch "$variant"
    tag=tensor-gateway:$version
    [ "$variant" = slim ] || tag=$tag-$variant
    "${build[@]}" "${arguments[@]}" --build-arg "VARIANT=$variant" --tag "$tag" .
    echo "built $tag"
done
