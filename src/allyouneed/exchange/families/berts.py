"""BERT, DistilBERT and RoBERTa: our BERT, with or without segments and a pooler."""

from __future__ import annotations

from collections.abc import Collection

from allyouneed.exchange.families.base import ACTIVATIONS, Family, Head, Options, Setting, Settings
from allyouneed.exchange.maps import Row, both

BLOCK = "body.stack.blocks.{i}"


def _labelled(name: str) -> dict[str, Head]:
    """The heads that label texts, words and spans, which are named alike in all families."""
    labels, spans = both("classifier", "head.out"), both("qa_outputs", "head.out")
    return {
        f"{name}ForSequenceClassification": Head("classify", labels, {"pool": "first"}),
        f"{name}ForTokenClassification": Head("tag", labels),
        f"{name}ForQuestionAnswering": Head("answer", spans, {"head": "span"}),
        f"{name}Model": Head("embed", bare=True),
    }


FIXED = {"is_decoder": False, "add_cross_attention": False}
TIED = frozenset({"tie_word_embeddings"})  # only a head for words has a second matrix, which must be a copy
COMMON = (
    Setting("vocab_size", "vocab", 30522),
    Setting("hidden_size", "width", 768),
    Setting("num_hidden_layers", "layers", 12),
    Setting("num_attention_heads", "heads", 12),
    Setting("intermediate_size", "hidden", 3072),
    Setting("layer_norm_eps", "norm_eps", 1e-12),
    Setting("hidden_dropout_prob", "dropout", 0.1),
    Setting("attention_probs_dropout_prob", "attention_dropout", 0.1),
)  # what BERT and RoBERTa call alike


def _ends(names: Collection[str], *ends: str) -> bool:
    return any(name.endswith(ends) for name in names)


def _body(prefix: str, skip: int = 0) -> list[Row]:
    at, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{i}}"
    qkv = " + ".join(f"{layer}.attention.self.{part}" for part in ("query", "key", "value"))
    return [
        Row(f"{at}.word_embeddings.weight", "body.embedding.tokens.weight"),
        Row(f"{at}.position_embeddings.weight", "body.embedding.positions.table.weight", skip=skip),
        Row(f"{at}.token_type_embeddings.weight", "body.segments.weight"),
        *both(f"{at}.LayerNorm", "body.norm"),
        *both(qkv, f"{BLOCK}.attention.qkv"),
        *both(f"{layer}.attention.output.dense", f"{BLOCK}.attention.out"),
        *both(f"{layer}.attention.output.LayerNorm", f"{BLOCK}.attention_norm"),
        *both(f"{layer}.intermediate.dense", f"{BLOCK}.feed_forward.into"),
        *both(f"{layer}.output.dense", f"{BLOCK}.feed_forward.out"),
        *both(f"{layer}.output.LayerNorm", f"{BLOCK}.feed_forward_norm"),
        *both(f"{prefix}.pooler.dense", "body.pooler"),
    ]


def _read_bert(given: Options, names: Collection[str], model: Settings) -> Settings:
    """The pooler is there if its tensors are. Beside the words of MLM it serves only the next sentences."""
    given.must(position_embedding_type="absolute")
    words, follows = _ends(names, "predictions.transform.dense.weight"), _ends(names, "seq_relationship.weight")
    pooled = _ends(names, "pooler.dense.weight") and (follows or not words)
    return {"pooler": "tanh" if pooled else "none"}


BERT_WORDS = [
    *both("cls.predictions.transform.dense", "words.into"),
    *both("cls.predictions.transform.LayerNorm", "words.norm"),
    Row("bert.embeddings.word_embeddings.weight", "words.out.weight"),
    Row("cls.predictions.bias", "words.out.bias"),
    *both("cls.seq_relationship", "next"),
]
BERT = Family(
    "bert",
    {
        "BertForPreTraining": Head("pretrain", BERT_WORDS),
        "BertForMaskedLM": Head("pretrain", BERT_WORDS),
        **_labelled("Bert"),
    },
    (
        *COMMON,
        Setting("hidden_act", "activation", "gelu", words=ACTIVATIONS),
        Setting("max_position_embeddings", "context", 512),
        Setting("type_vocab_size", "segments", 2),
    ),
    lambda model: _body("bert"),
    fixed=FIXED,
    more=_read_bert,
    prefix="bert.",
    ignored=("embeddings.position_ids",),
    copies={f"cls.predictions.decoder.{part}": f"words.out.{part}" for part in ("weight", "bias")},
    neutral=TIED
    | {"classifier_dropout", "gradient_checkpointing", "directionality", "tie_encoder_decoder"}
    | {f"pooler_{part}" for part in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")},
    older={".gamma": ".weight", ".beta": ".bias"},
)


def _read_roberta(given: Options, names: Collection[str], model: Settings) -> Settings:
    """The head of a classifier is a pooler and a matrix. Positions are counted from the number of padding on."""
    given.must(position_embedding_type="absolute", pad_token_id=1)
    pooled = _ends(names, "pooler.dense.weight") and not _ends(names, "lm_head.dense.weight")
    return {"pooler": "tanh" if pooled or _ends(names, "classifier.dense.weight") else "none"}


ROBERTA_WORDS = [
    *both("lm_head.dense", "words.into"),
    *both("lm_head.layer_norm", "words.norm"),
    Row("roberta.embeddings.word_embeddings.weight", "words.out.weight"),
    Row("lm_head.bias", "words.out.bias"),
]
ROBERTA_LABELS = [*both("classifier.dense", "body.pooler"), *both("classifier.out_proj", "head.out")]
ROBERTA = Family(
    "bert",
    {
        "RobertaForMaskedLM": Head("pretrain", ROBERTA_WORDS),
        **_labelled("Roberta"),
        "RobertaForSequenceClassification": Head("classify", ROBERTA_LABELS, {"pool": "first"}),
    },
    # Positions are counted from 2 on, after that of padding.
    (
        *COMMON,
        Setting("hidden_act", "activation", "gelu", words={"gelu": "gelu"}),
        Setting("max_position_embeddings", "context", 514, more=2),
        Setting("type_vocab_size", "segments", 1, words={1: 1}),
    ),
    lambda model: _body("roberta", skip=2),
    fixed=FIXED,
    more=_read_roberta,
    prefix="roberta.",
    ignored=("embeddings.position_ids",),
    copies={f"lm_head.decoder.{part}": f"words.out.{part}" for part in ("weight", "bias")},
    neutral=TIED | {"classifier_dropout", "gradient_checkpointing"},
    older={".gamma": ".weight", ".beta": ".bias"},
)


def _distilbert_rows(model: Settings) -> list[Row]:
    at, layer = "distilbert.embeddings", "distilbert.transformer.layer.{i}"
    qkv = " + ".join(f"{layer}.attention.{part}_lin" for part in "qkv")
    return [
        Row(f"{at}.word_embeddings.weight", "body.embedding.tokens.weight"),
        Row(f"{at}.position_embeddings.weight", "body.embedding.positions.table.weight"),
        *both(f"{at}.LayerNorm", "body.norm"),
        *both(qkv, f"{BLOCK}.attention.qkv"),
        *both(f"{layer}.attention.out_lin", f"{BLOCK}.attention.out"),
        *both(f"{layer}.sa_layer_norm", f"{BLOCK}.attention_norm"),
        *both(f"{layer}.ffn.lin1", f"{BLOCK}.feed_forward.into"),
        *both(f"{layer}.ffn.lin2", f"{BLOCK}.feed_forward.out"),
        *both(f"{layer}.output_layer_norm", f"{BLOCK}.feed_forward_norm"),
    ]


DISTILBERT_WORDS = [
    *both("vocab_transform", "words.into"),
    *both("vocab_layer_norm", "words.norm"),
    Row("distilbert.embeddings.word_embeddings.weight", "words.out.weight"),
    Row("vocab_projector.bias", "words.out.bias"),
]
DISTILBERT_LABELS = [*both("pre_classifier", "body.pooler"), *both("classifier", "head.out")]
DISTILBERT = Family(
    "bert",
    {
        "DistilBertForMaskedLM": Head("pretrain", DISTILBERT_WORDS),
        **_labelled("DistilBert"),
        "DistilBertForSequenceClassification": Head("classify", DISTILBERT_LABELS, {"pool": "first"}),
    },
    (
        Setting("vocab_size", "vocab", 30522),
        Setting("max_position_embeddings", "context", 512),
        Setting("dim", "width", 768),
        Setting("n_layers", "layers", 6),
        Setting("n_heads", "heads", 12),
        Setting("hidden_dim", "hidden", 3072),
        Setting("activation", "activation", "gelu", words=ACTIVATIONS),
        Setting("dropout", "dropout", 0.1),
        Setting("attention_dropout", "attention_dropout", 0.1),
    ),
    _distilbert_rows,
    always={"norm_eps": 1e-12, "segments": 0},
    more=lambda given, names, model: {"pooler": "relu" if _ends(names, "pre_classifier.weight") else "none"},
    prefix="distilbert.",
    ignored=("embeddings.position_ids",),
    copies={"vocab_projector.weight": "words.out.weight"},
    neutral=TIED | {"qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"},
)
