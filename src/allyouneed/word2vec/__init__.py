"""The engine of word2vec: steps of gradient descent that are made in place, on a CPU by a compiled kernel."""
