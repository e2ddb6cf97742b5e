"""One file a model: a body of nn parts, and a head."""
