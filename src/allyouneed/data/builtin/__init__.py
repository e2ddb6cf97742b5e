"""The data sets that this library generates by rules."""
