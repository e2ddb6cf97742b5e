"""The only lookup: model and task names -> "module:Class". Imports nothing heavy until asked."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from allyouneed.errors import UserError, nearest, shortened

MODELS = {
    "bert": "allyouneed.models.bert:Bert",
    "convnet": "allyouneed.models.convnet:ConvNet",
    "convseq2seq": "allyouneed.models.convseq2seq:ConvSeq2Seq",
    "dalle": "allyouneed.models.dalle:DALLE",
    "dvae": "allyouneed.models.dvae:DVAE",
    "elmo": "allyouneed.models.elmo:ELMo",
    "gpt": "allyouneed.models.gpt:GPT",
    "seq2seq": "allyouneed.models.seq2seq:Seq2Seq",
    "rnn": "allyouneed.models.rnn:RNN",
    "transformer": "allyouneed.models.transformer:Transformer",
    "vit": "allyouneed.models.vit:ViT",
    "word2vec": "allyouneed.models.word2vec:Word2Vec",
}
TASKS = {
    "answer": "allyouneed.tasks.questions:AnswerQuestions",
    "classify": "allyouneed.tasks.labels:Classify",
    "compress": "allyouneed.tasks.images:Compress",
    "draw": "allyouneed.tasks.draw:Draw",
    "embed": "allyouneed.tasks.embed:Embed",
    "lm": "allyouneed.tasks.lm:LM",
    "pretrain": "allyouneed.tasks.pretrain:Pretrain",
    "recognize": "allyouneed.tasks.images:Recognize",
    "tag": "allyouneed.tasks.tag:Tag",
    "translate": "allyouneed.tasks.translate:Translate",
    "wordvectors": "allyouneed.tasks.wordvectors:WordVectors",
}
PREDICTORS = {
    "answer": "allyouneed.predict.questions:AnswerPredictor",
    "classify": "allyouneed.predict.labels:ClassifyPredictor",
    "compress": "allyouneed.predict.images:CompressPredictor",
    "draw": "allyouneed.predict.draw:DrawPredictor",
    "embed": "allyouneed.predict.embed:EmbedPredictor",
    "lm": "allyouneed.predict.lm:LMPredictor",
    "pretrain": "allyouneed.predict.fill:FillPredictor",
    "recognize": "allyouneed.predict.images:RecognizePredictor",
    "tag": "allyouneed.predict.labels:TagPredictor",
    "translate": "allyouneed.predict.translate:TranslatePredictor",
    "wordvectors": "allyouneed.predict.words:WordsPredictor",
}


def model(kind: str) -> Any:
    """The model class of a name; its Config and sizes sit on it."""
    return _load("model", kind, MODELS)


def task(kind: str) -> Any:
    """The task class of a name; its Options sit on it."""
    return _load("task", kind, TASKS)


def predictor(kind: str) -> Any:
    """What answers for a run of this task; its Processor sits on it."""
    return _load("task", kind, PREDICTORS)


def _load(what: str, kind: str, table: dict[str, str]) -> Any:
    if kind not in table:
        raise UserError(f"there is no {what} '{shortened(kind)}'{nearest(kind, table)}")
    return resolve_name(table[kind])
