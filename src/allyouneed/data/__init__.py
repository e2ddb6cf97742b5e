"""Files and named data sets -> examples -> batches."""
