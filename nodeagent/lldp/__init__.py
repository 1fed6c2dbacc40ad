"""LLDP (IEEE 802.1AB): frames to LLDPDUs, LLDPDUs to neighbors and remarks, captures to lines.

Pure: no sockets, no clocks (``now`` is an argument), no logging. Any input may be hostile: the codec raises only
``LldpError``, the capture reader only ``PcapError``.
"""
