"""A run on disk: its folder, its JSON files, its checkpoints, its tensors; every file is complete or absent."""
