"""Other libraries that compute what a run answers."""
