"""The data sets that are generated here, by rules."""
