"""Text <-> numbers: char, word, BPE and WordPiece tokenizers, each one tokenizer.json, and how texts are laid out."""

from allyouneed.text.layout import Laid, Layout, Tokens, first_pieces
from allyouneed.text.tokenizer import Tokenizer

__all__ = ["Laid", "Layout", "Tokenizer", "Tokens", "first_pieces"]
