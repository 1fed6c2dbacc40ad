"""The service that the kubelet calls on a socket in ``plugins_registry`` (pluginregistration, pluginwatcher).

Imported only if ``kubelet.registration`` is ``plugins_registry``, because it needs protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from nodeagent.kube import pluginregistration_pb2 as pb
from nodeagent.kubelet.device_list import API_VERSION


def registration_handler(resource: str, on_status: Callable[[str | None], None]) -> grpc.GenericRpcHandler:
    """Introduce a device plugin to the kubelet.

    ``on_status`` takes the kubelet's answer: ``None`` if it has registered the plugin, else the reason.
    """

    async def get_info(_request: bytes, _context: Any) -> bytes:
        return pb.PluginInfo(
            type="DevicePlugin", name=resource, supported_versions=[API_VERSION]
        ).SerializeToString()

    async def notify(request: bytes, _context: Any) -> bytes:
        status = pb.RegistrationStatus.FromString(request)
        on_status(None if status.plugin_registered else status.error or "the kubelet gave no reason")
        return b""

    return grpc.method_handlers_generic_handler(
        "pluginregistration.Registration",
        {
            "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
        },
    )
