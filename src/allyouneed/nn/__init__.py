"""The mathematics: tensors in, tensors out; no files, no text.

Shapes, everywhere in this library: B batch, T time (Tq, Tk where two), S time of the source, D model width,
H heads, Hkv key/value heads, K head width, V vocabulary, L layers.
"""
