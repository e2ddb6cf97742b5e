"""The training engine of word2vec: gradient steps in place, without autograd; a compiled kernel on a CPU."""
