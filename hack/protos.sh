#!/bin/sh
# Regenerate the *_pb2.py and *_pb2.pyi of nodeagent/ from protos/, below the folder given (default: this one).
# PYTHON names an interpreter with the pinned grpcio-tools. There is no *_pb2_grpc.py: generic handlers register
# and call the services.
#
# protos/ is mapped to the path of the package. The files then have that path in protobuf's process-wide descriptor
# pool and cannot collide with a "podresources.proto" of another package.
set -eu
cd "$(dirname "$0")/.."
out=${1:-.}
generate() {
    package=$1
    shift
    "${PYTHON:-python3}" -m grpc_tools.protoc -I "$package=protos" --python_out="$out" --pyi_out="$out" "$@"
}
generate nodeagent/kube \
    nodeagent/kube/deviceplugin.proto nodeagent/kube/pluginregistration.proto nodeagent/kube/podresources.proto \
    nodeagent/kube/dra_v1.proto nodeagent/kube/dra_health_v1alpha1.proto nodeagent/kube/dra_health_v1.proto
generate nodeagent/features/nvsentinel nodeagent/features/nvsentinel/health_event.proto
generate nodeagent/attach nodeagent/attach/nri.proto
