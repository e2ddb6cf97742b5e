"""Every claim of speed: our code and a peer in one run, on the same work."""
