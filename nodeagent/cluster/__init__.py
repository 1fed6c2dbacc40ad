"""Writers to and mirrors of the API server: NodeLinks, Events, node marks and labels, HyperNodes, evictions."""
