"""Serve: runs over HTTP."""
