"""What a switch port says about itself: bytes to LLDPDU, LLDPDUs to neighbors, captures to lines.

The law of this room: no sockets, no clocks (``now`` is handed in), no logging. Every byte is hostile:
the codec raises ``LldpError`` and nothing else, a capture ``PcapError`` and nothing else.
"""
