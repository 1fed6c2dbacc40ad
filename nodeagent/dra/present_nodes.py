"""The device nodes of a prepared claim as they are now: a driver that is loaded again numbers its devices anew."""

from __future__ import annotations

import logging

from nodeagent.dra.claim_preparation import renewed
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim, gone_device, has_other_names, is_outdated
from nodeagent.kinds import Refused, ascii_name

log = logging.getLogger(__name__)


def with_present_nodes(record: PreparedClaim, offer: DraOffer) -> PreparedClaim:
    """Return the record with the device nodes that its devices have now. Raises ``Refused`` if a device is gone, or if
    the nodes cannot be given, and those of the record are not theirs."""
    pools = offer.current.pools
    known_pools = {pool for pool, devices in pools.items() if devices is not None}
    not_offered = {device.kind for device in record.devices if offer.known and device.kind not in pools}
    gone = gone_device(record, offer.snapshot, known_pools)
    if gone is not None:
        raise Refused(f"the device {ascii_name(gone)} of the claim is not there any more")
    outdated = is_outdated(record, offer.snapshot)
    renamed = has_other_names(record, offer.snapshot)
    if not (outdated or renamed) and all(device.amount for device in record.devices):
        return record
    try:
        current = renewed(record, offer.current.known(), offer.snapshot, known_pools | not_offered)
    except Refused as refusal:
        if not outdated:
            return record
        raise Refused(
            f"the device nodes of the claim have changed since it was prepared: {refusal}"
        ) from None
    if current == record:
        return record
    log.warning(
        "The device nodes of a claim, or the names of its RDMA devices, have changed. claim=%s",
        record.full_name,
    )
    return current
