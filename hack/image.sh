#!/bin/sh
# Build the image with the first builder that answers: hack/image.sh [--lab] [NAME:TAG] [OPTION …]
# --lab builds the image with the simulated machines, for overlays/kind; its name is nodeagent-lab.
# NODEAGENT_BUILDER=podman selects one; it gets the options unchanged (--push, --platform linux/arm64).
set -eu
cd "$(dirname "$0")/.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' nodeagent/__init__.py)
default=nodeagent
target=
if [ "${1:-}" = --lab ]; then
    default=nodeagent-lab
    target=lab
    shift
fi
name=${1-$default:$version}
case $name in
"" | [!a-z0-9]* | *[!A-Za-z0-9._:/@-]*)
    echo "\"$name\" is no NAME:TAG of an image; it comes before the options: hack/image.sh [--lab] [NAME:TAG] [OPTION …]" >&2
    exit 2
    ;;
esac
[ $# -eq 0 ] || shift
# A release builds an export of its commit, and names the commit and the address of the repository.
revision=${NODEAGENT_REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
# The time of the commit, so that the same source gives the same image.
created=${NODEAGENT_CREATED:-$(git log -1 --format=%cI 2>/dev/null || echo unknown)}
source=${NODEAGENT_SOURCE:-unknown}
# NAME or NAME@DIGEST. Without a digest the builder takes the newest image of that name.
base=${NODEAGENT_BASE:-$(sed -n '/^[^#]/p' hack/base-image.txt)}
case $base in
*@*) digest=${base#*@} ;;
*)
    digest=unknown
    echo "The base $base has no digest, so two builds may differ: the builder takes the newest. make release ARGS=base writes it into hack/base-image.txt." >&2
    ;;
esac

# Whether a builder can build here: docker and buildctl are clients of a daemon, and podman may be one.
answers() {
    case $1 in
    docker) docker version ;;
    buildctl) buildctl debug workers ;;
    *) "$1" info ;;
    esac >/dev/null 2>&1
}

builder=${NODEAGENT_BUILDER:-}
silent=
if [ -z "$builder" ]; then
    for candidate in docker podman buildah buildctl; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if answers "$candidate"; then
            builder=$candidate
            break
        fi
        silent="$silent $candidate"
    done
fi

# A name without a registry means docker.io/library for docker, buildctl and the kubelet. podman and buildah would build
# it as localhost/NAME, which no node finds.
case $builder in
podman | buildah)
    case $name in
    *.*/* | *:*/* | localhost/*) ;;
    */*) name=docker.io/$name ;;
    *) name=docker.io/library/$name ;;
    esac
    ;;
esac

case $builder in
docker | podman)
    exec "$builder" build ${target:+--target "$target"} --tag "$name" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        --build-arg "CREATED=$created" --build-arg "SOURCE=$source" --build-arg "BASE=$base" --build-arg "BASE_DIGEST=$digest" "$@" .
    ;;
buildah)
    exec buildah build --layers ${target:+--target "$target"} --tag "$name" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        --build-arg "CREATED=$created" --build-arg "SOURCE=$source" --build-arg "BASE=$base" --build-arg "BASE_DIGEST=$digest" "$@" .
    ;;
buildctl)
    exec buildctl build --frontend dockerfile.v0 ${target:+--opt "target=$target"} --local context=. --local dockerfile=. \
        --opt "build-arg:VERSION=$version" --opt "build-arg:REVISION=$revision" \
        --opt "build-arg:CREATED=$created" --opt "build-arg:SOURCE=$source" \
        --opt "build-arg:BASE=$base" --opt "build-arg:BASE_DIGEST=$digest" --output "type=image,name=$name" "$@"
    ;;
"")
    if [ -n "$silent" ]; then
        echo "No builder answers:$silent cannot be used here. Start its daemon, or install another one of docker, podman, buildah or buildctl." >&2
        exit 1
    fi
    echo "No builder found: install docker, podman, buildah or buildctl, or name one in NODEAGENT_BUILDER." >&2
    exit 1
    ;;
*)
    echo "NODEAGENT_BUILDER=$builder is unknown: use docker, podman, buildah or buildctl" >&2
    exit 2
    ;;
esac
