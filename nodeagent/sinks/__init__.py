"""Each sink tells one listener, by level: it computes what should be and says what differs from last time."""
