"""Every family of models that can be imported: the numbers of the real transformers, and the same tensors back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from allyouneed.errors import UserError
from allyouneed.exchange.importing import import_run
from allyouneed.exchange.to_hf import find_form, their_tensors
from allyouneed.run import Run, load
from allyouneed.storage.tensorfile import read_tensors

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
TEXTS = ["the cat sat on the mat", "a dog ran", "the dog saw the cat, and the cat ran from the dog to the mat"]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LABELS = {"id2label": {0: "sad", 1: "glad", 2: "neither"}, "label2id": {"sad": 0, "glad": 1, "neither": 2}}
TAGS = {"id2label": {0: "O", 1: "B-animal", 2: "I-animal"}, "label2id": {"O": 0, "B-animal": 1, "I-animal": 2}}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SMALL, "vocab_size": 100, "max_position_embeddings": 40}
OTHER_BERT = {**BERT, "hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 3, "num_hidden_layers": 3}
ROBERTA = {**SMALL, "vocab_size": 300, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}
DISTIL = {
    "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 100, "max_position_embeddings": 40,
}  # fmt: skip
GPT2 = {
    "vocab_size": 100, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "pad_token_id": 0,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2}
VIT = {**SMALL, "image_size": 12, "patch_size": 4}
MARIAN = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "scale_embedding": True,
    "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert, words and sentences": ("BertForPreTraining", BERT),
    "bert, words": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new"}),
    "bert, other sizes": ("BertForPreTraining", OTHER_BERT),
    "bert, labels": ("BertForSequenceClassification", {**BERT, **LABELS}),
    "bert, tags": ("BertForTokenClassification", {**BERT, **TAGS}),
    "bert, answers": ("BertForQuestionAnswering", BERT),
    "bert, no head": ("BertModel", BERT),
    "roberta, words": ("RobertaForMaskedLM", ROBERTA),
    "roberta, labels": ("RobertaForSequenceClassification", {**ROBERTA, **LABELS, "layer_norm_eps": 1e-5}),
    "roberta, tags": ("RobertaForTokenClassification", {**ROBERTA, **TAGS}),
    "roberta, answers": ("RobertaForQuestionAnswering", ROBERTA),
    "roberta, no head": ("RobertaModel", ROBERTA),
    "distilbert, words": ("DistilBertForMaskedLM", {**DISTIL, "activation": "relu"}),
    "distilbert, labels": ("DistilBertForSequenceClassification", {**DISTIL, **LABELS}),
    "distilbert, tags": ("DistilBertForTokenClassification", {**DISTIL, **TAGS}),
    "distilbert, answers": ("DistilBertForQuestionAnswering", {**DISTIL, "sinusoidal_pos_embds": True}),
    "distilbert, no head": ("DistilBertModel", DISTIL),
    "vit": ("ViTForImageClassification", {**VIT, **LABELS}),
    "vit, other choices": (
        "ViTForImageClassification",
        {**VIT, **LABELS, "num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "patch_size": 3},
    ),
    "vit, no biases of queries, keys and values": ("ViTForImageClassification", {**VIT, **LABELS, "qkv_bias": False}),
    "vit, no head": ("ViTModel", VIT),
    "gpt2, labels": ("GPT2ForSequenceClassification", {**GPT2, **LABELS}),
    "llama, labels": ("LlamaForSequenceClassification", {**LLAMA, **LABELS}),
    "mistral, labels": ("MistralForSequenceClassification", {**LLAMA, **LABELS, "sliding_window": None}),
    "qwen2, labels": ("Qwen2ForSequenceClassification", {**LLAMA, **LABELS, "head_dim": 8}),
    "marian": ("MarianMTModel", {**MARIAN, "activation_function": "swish"}),
    "marian, nothing tied": ("MarianMTModel", {**MARIAN, "activation_function": "gelu", "tie_word_embeddings": False}),
    "pegasus": ("PegasusForConditionalGeneration", {**MARIAN, "activation_function": "relu"}),
    "pegasus, nothing tied": ("PegasusForConditionalGeneration", {**MARIAN, "tie_word_embeddings": False}),
    "marian, two tables": (
        "MarianMTModel",
        {**MARIAN, "activation_function": "relu", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 90},
    ),
}  # fmt: skip


def make(name: str, config: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**config))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2) if p.dim() > 1 else p.data.add_(0.1 * torch.randn_like(p))
    if name in ("MarianMTModel", "PegasusForConditionalGeneration"):
        torch.nn.init.normal_(model.final_logits_bias)
        for side in (model.model.encoder, model.model.decoder):  # the sinusoids were parameters, too
            side.embed_positions.weight.data = side.embed_positions.create_weight()
    return model.eval()


def bert_tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=SPECIALS, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def roberta_tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special)
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def save(model: Any, path: Path) -> None:
    """As transformers saves it, with a tokenizer."""
    model.save_pretrained(path)
    kind = model.config.model_type
    if kind in ("marian", "pegasus"):
        made = bert_tokenizer()
        made.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
        made.save(str(path / "tokenizer.json"))
    elif kind != "vit":
        (roberta_tokenizer() if kind == "roberta" else bert_tokenizer()).save(str(path / "tokenizer.json"))


def imported(path: Path, out: Path) -> Run:
    import_run(path, out, say=lambda line: None)
    return load(out, device="cpu")


def compare(run: Run, theirs: Any) -> None:
    """All numbers that the models give, for rows of different lengths and two texts in a row."""
    kind, vocab = theirs.config.model_type, theirs.config.to_dict().get("vocab_size", 0)
    task = run.recipe.task_kind
    if kind == "vit":
        pixels = torch.randn(3, theirs.config.num_channels, 12, 12)
        if task == "recognize" and not run.task.labels:
            assert_same(run.model.body(pixels), theirs(pixels).last_hidden_state)
            return
        hidden = run.model.body(pixels)
        assert_same(run.model.head(hidden, torch.full((3,), hidden.size(1))), theirs(pixels).logits)
        return
    ids, lengths = torch.randint(5, min(vocab, 90), (3, 11)), torch.tensor([11, 4, 7])
    seen = (torch.arange(11) < lengths[:, None]).long()
    ids = ids * seen  # a classifier that reads left to right finds the last token by the id of the padding
    if kind in ("marian", "pegasus"):
        target = torch.randint(5, 90, (3, 6))
        expected = theirs(input_ids=ids, attention_mask=seen, decoder_input_ids=target).logits
        assert_same(run.model(ids, lengths, target), expected)
        return
    segments = (torch.arange(11) > 2).long().expand(3, -1) if kind == "bert" else torch.zeros_like(ids)
    given = {"token_type_ids": segments} if kind == "bert" else {}
    out = theirs(input_ids=ids, attention_mask=seen, **given)
    ours = run.model({"ids": ids, "lengths": lengths, "segments": segments})
    real = seen.bool()
    if task == "pretrain":
        words, follows = ours
        assert_same(words[real], (out.prediction_logits if "prediction_logits" in out else out.logits)[real])
        if "seq_relationship_logits" in out:
            assert_same(follows, out.seq_relationship_logits)
    elif task == "answer":
        assert_same(ours[real], torch.stack([out.start_logits, out.end_logits], -1)[real])
    elif task == "embed":
        hidden = out.last_hidden_state * seen[..., None]
        assert_same(ours, hidden.sum(1) / lengths[:, None])
    elif task == "tag":
        assert_same(ours[real], out.logits[real])
    else:
        assert_same(ours, out.logits)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_it_equals_transformers_and_goes_back(name, seed, tmp_path):
    theirs = make(*CASES[name], seed)
    save(theirs, tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run")
    compare(run, theirs)
    form, weights = find_form(run.task, run.model, run.config["family"])
    assert form.name == CASES[name][0]
    back = their_tensors(form, weights, run.model)
    stored = read_tensors(tmp_path / "theirs/model.safetensors")
    if "vit" in name or "labels" in name:
        assert back.keys() <= stored.keys()
    for key, tensor in stored.items():
        if ("pooler" in key and key not in back) or ("nothing tied" in name and key == "model.shared.weight"):
            continue  # nothing asks for it
        same = tensor if "position_embeddings.weight" not in key or "roberta" not in name else tensor[2:]
        assert torch.equal(back[key][-len(same) :], same), key


@torch.inference_mode()
def test_a_classifier_that_reads_left_to_right_labels_texts(tmp_path):
    """The same probabilities for a text, through the tokenizer, and after it has gone back."""
    theirs = make(*CASES["gpt2, labels"], 1)
    save(theirs, tmp_path / "theirs")
    run = imported(tmp_path / "theirs", tmp_path / "run")
    run.export(tmp_path / "back", "hf", say=lambda line: None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    for text in TEXTS:
        probabilities = list(run.answers([text])[0].details["probabilities"].values())
        ids = torch.tensor([bert_tokenizer().encode(text).ids])
        assert tokenizer(text)["input_ids"] == ids[0].tolist()
        for model in (theirs, opened):
            assert probabilities == pytest.approx(model(ids).logits.softmax(-1)[0].tolist(), abs=1e-5)
    run.model.head.out.bias.data.fill_(0.1)
    with pytest.raises(UserError, match=r"no gpt with numbers other than 0 in head\.out\.bias"):
        find_form(run.task, run.model, run.config["family"])


def test_the_pooler_of_a_vit_is_said_to_be_dropped(tmp_path):
    save(make(*CASES["vit, no head"], 1), tmp_path / "theirs")
    lines: list[str] = []
    import_run(tmp_path / "theirs", tmp_path / "run", say=lines.append)
    assert "not used: pooler.dense.bias, pooler.dense.weight" in lines
    load(tmp_path / "run", device="cpu").export(tmp_path / "back", "hf", say=lines.append)
    assert "this run has no pooler: ViTModel of transformers gives one random weights" in lines


@pytest.mark.parametrize("name", ["bert, words", "roberta, words", "distilbert, words"])
def test_a_head_for_words_with_a_matrix_of_its_own_is_refused(name, tmp_path):
    kind, config = CASES[name]
    save(make(kind, {**config, "tie_word_embeddings": False}, 1), tmp_path / "theirs")
    with pytest.raises(
        UserError, match=r"is not equal to \S+word_embeddings.weight, and a bert of this library has one"
    ):
        import_run(tmp_path / "theirs", tmp_path / "run", say=lambda line: None)
    kind, config = CASES[name.replace("words", "labels")]
    save(make(kind, {**config, "tie_word_embeddings": False}, 1), tmp_path / "labels")
    assert imported(tmp_path / "labels", tmp_path / "run").recipe.task_kind == "classify"
