"""Models of other libraries <-> run folders. What a tensor is called there and here is data, not code."""
