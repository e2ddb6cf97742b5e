"""Every claim of speed: ours and a peer in one run, on the same work."""
