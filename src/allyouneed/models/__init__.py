"""One file per model: a body made of the parts in nn/, and a head."""
