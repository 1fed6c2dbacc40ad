#!/bin/sh
# Regenerates the *_pb2.py and *_pb2.pyi of nodeagent/ from protos/, or writes them under the folder given.
# PYTHON names an interpreter that has the pinned grpcio-tools. No *_pb2_grpc.py: the services are
# registered and called by generic handlers.
#
# protos/ is mapped to the virtual path of the package that holds them, so that the files carry that name in
# protobuf's process-wide descriptor pool and cannot collide with another package's "podresources.proto".
set -eu
cd "$(dirname "$0")/.."
out=${1:-.}
generate() {
    package=$1
    shift
    "${PYTHON:-python3}" -m grpc_tools.protoc -I "$package=protos" --python_out="$out" --pyi_out="$out" "$@"
}
generate nodeagent/kube \
    nodeagent/kube/deviceplugin.proto nodeagent/kube/pluginregistration.proto nodeagent/kube/podresources.proto
generate nodeagent/switches nodeagent/switches/gnmi.proto
