#!/bin/sh
# Regenerates nodeagent/kube/*_pb2.py and *_pb2.pyi from protos/, or writes them under the folder given.
# PYTHON names an interpreter that has the pinned grpcio-tools. No *_pb2_grpc.py: the services are
# registered by generic handlers.
#
# protos/ is mapped to the virtual path nodeagent/kube, so that the files carry that name in protobuf's
# process-wide descriptor pool and cannot collide with another package's "podresources.proto".
set -eu
cd "$(dirname "$0")/.."
out=${1:-.}
exec "${PYTHON:-python3}" -m grpc_tools.protoc -I nodeagent/kube=protos \
    --python_out="$out" --pyi_out="$out" \
    nodeagent/kube/deviceplugin.proto nodeagent/kube/pluginregistration.proto nodeagent/kube/podresources.proto
