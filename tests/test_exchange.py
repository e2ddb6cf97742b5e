"""ayn import and ayn export as people use them, hf: names, chats, and what an imported run can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import allyouneed
from allyouneed.errors import UserError
from allyouneed.exchange import hub
from allyouneed.exchange.importing import import_run
from allyouneed.predict.inputs import fill_template
from allyouneed.run import load, train
from allyouneed.storage.tensorfile import read_tensors
from commands import ayn, mistake
from conftest import TINY_LM, TINY_TRANSLATE
from inputs import ids_of
from test_families import CASES, TEXTS, make, save

transformers = pytest.importorskip("transformers")
PNG = b"\x89PNG"


def turn(text: str) -> list[dict[str, str]]:
    """The message of a user."""
    return [{"role": "user", "content": text}]


def saved(name: str, path: Path, **options: Any) -> Path:
    """A small model as transformers saves it."""
    kind, config = CASES[name]
    save(make(kind, {**config, **options}, 1), path)
    return path


def run_of(name: str, path: Path, **options: Any) -> Path:
    import_run(saved(name, path / "theirs", **options), path / "run", say=lambda line: None)
    return path / "run"


def change(path: Path, **values: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **values}))


# What an imported run can do.


def test_a_classifier_reads_one_text_or_two(tmp_path):
    run = run_of("roberta, labels", tmp_path)
    one = ayn("use", run, TEXTS[0], "--json")
    two = ayn("use", run, f"{TEXTS[0]} ||| {TEXTS[1]}", "--json")
    labels = [json.loads(done.out)["probabilities"] for done in (one, two)]
    assert list(labels[0]) == list(labels[1]) == ["sad", "glad", "neither"]
    assert labels[0] != labels[1]
    loaded = load(run)
    theirs = transformers.RobertaForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "theirs/tokenizer.json"))
    for given, text in ((TEXTS[:1], TEXTS[0]), (TEXTS[:2], f"{TEXTS[0]} ||| {TEXTS[1]}")):
        encoded = tokenizer(*given, return_tensors="pt")
        with torch.inference_mode():
            p = theirs(input_ids=encoded.input_ids).logits.softmax(-1)[0].tolist()
        (answer,) = loaded.answers([text])
        assert list(answer.details["probabilities"].values()) == pytest.approx(p, abs=1e-5)
    reviews = tmp_path / "reviews.tsv"
    reviews.write_text("".join(f"{text}\t{label}\n" for text in TEXTS for label in ("sad", "glad")))
    tested = ayn("test", run, "--data", reviews)
    assert tested.code == 0, tested.err
    assert "accuracy" in tested.out
    assert "a classifier, or a tagger" not in ayn("info", run).out


def test_a_tagger_and_answers(tmp_path):
    tagger = run_of("bert, tags", tmp_path / "tags")
    done = ayn("use", tagger, TEXTS[0], "--json")
    assert set(json.loads(done.out)["tags"]) <= {"O", "B-animal", "I-animal"}
    parts = {"id2label": {0: "NOUN", 1: "VERB"}, "label2id": {"NOUN": 0, "VERB": 1}}
    speech = run_of("distilbert, tags", tmp_path / "speech", **parts)
    assert {"NOUN", "VERB"} >= set(json.loads(ayn("use", speech, TEXTS[0], "--json").out)["tags"])
    asked = run_of("roberta, answers", tmp_path / "answers")
    answer = json.loads(ayn("use", asked, f"who ran? ||| {TEXTS[2]}", "--json").out)
    assert answer["answer"]
    assert answer["answer"] in TEXTS[2]


def test_images_and_their_normalisation(tmp_path):
    path = saved("vit", tmp_path / "theirs")
    change(path / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    import_run(path, tmp_path / "run", say=lambda line: None)
    pixels = np.random.default_rng(1).integers(0, 255, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    done = ayn("use", tmp_path / "run", tmp_path / "image.png", "--json")
    theirs = transformers.ViTForImageClassification.from_pretrained(path).eval()
    x = (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor(
        [0.4, 0.5, 0.6]
    ).view(3, 1, 1)
    with torch.inference_mode():
        p = theirs(x[None]).logits.softmax(-1)[0].tolist()
    assert list(json.loads(done.out)["probabilities"].values()) == pytest.approx(p, abs=1e-4)
    figure = ayn("use", tmp_path / "run", tmp_path / "image.png", "--heads", tmp_path / "heads.png")
    assert figure.code == 0, figure.err
    assert (tmp_path / "heads.png").read_bytes().startswith(PNG)
    for spoilt in ({"do_rescale": False}, {"do_rescale": True, "image_std": [0, 0, 0]}):
        change(path / "preprocessor_config.json", **spoilt)
        assert "preprocessor_config.json: " in mistake("import", path, "--out", tmp_path / "other")
    change(path / "preprocessor_config.json", image_mean=[0.1, 0.2])
    assert "'image_mean' is not a list of 3 numbers" in mistake("import", path, "--out", tmp_path / "other")
    body = run_of("vit, no head", tmp_path / "body")
    assert "this run has no labels" in mistake("use", body, tmp_path / "image.png")


def test_a_translator_writes_the_beams_of_transformers(tmp_path):
    path = saved("marian", tmp_path / "theirs", vocab_size=50)  # as many as the tokenizer has
    generation = {"num_beams": 3, "max_length": 20, "bad_words_ids": [[0]], "renormalize_logits": True}
    change(path / "generation_config.json", **generation, forced_eos_token_id=None)
    import_run(path, tmp_path / "run", say=lambda line: None)
    run = load(tmp_path / "run")
    assert (run.recipe.decode.method, run.recipe.decode.beam, run.recipe.decode.max_new) == ("beam", 3, 19)
    theirs = transformers.MarianMTModel.from_pretrained(path).eval()
    for text in TEXTS:
        ids = ids_of(run, text)
        wanted = theirs.generate(torch.tensor([ids]))[0].tolist()[1:]
        (answer,) = run.answers([text])
        assert answer.tokens == (wanted[: wanted.index(3)] if 3 in wanted else wanted)
        assert 0 not in answer.tokens
        assert answer.text == run.task.tokenizer.decode(answer.tokens)


@pytest.mark.parametrize("name", ["bert, no head", "distilbert, words", "roberta, labels"])
def test_a_training_starts_from_it(name, tmp_path):
    run = run_of(name, tmp_path)
    reviews = tmp_path / "reviews.tsv"
    reviews.write_text("".join(f"the {w} cat number {i}\t{w}\n" for i in range(40) for w in ("glad", "sad")))
    settings = ["train.steps=2", "train.threads=1", "train.batch_tokens=256", "train.device=cpu", "model.dropout=0.0"]
    done = ayn("train", "classify/bert", "--data", reviews, "--init", run, "--out", tmp_path / "tuned", *settings)
    assert done.code == 0, done.err
    assert "loaded the body of" in done.out
    assert load(tmp_path / "tuned").predict("the glad cat") in ("glad", "sad")


def test_vectors_of_an_imported_run(tmp_path):
    run = run_of("bert, no head", tmp_path)
    done = ayn("use", run, TEXTS[0], "--json")
    assert len(json.loads(done.out)["vector"]) == 32
    path = saved("bert, no head", tmp_path / "first")
    (path / "1_Pooling").mkdir()
    change(path / "1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    import_run(path, tmp_path / "cls", say=lambda line: None)
    assert load(tmp_path / "cls").recipe.task.pool == "first"
    (path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    assert "this library has no module Dense" in mistake("import", path, "--out", tmp_path / "no")
    (path / "modules.json").unlink()
    change(path / "1_Pooling/config.json", pooling_mode_cls_token=False, pooling_mode_weightedmean_tokens=True)
    assert "pooling_mode_weightedmean_tokens is not supported" in mistake("import", path, "--out", tmp_path / "no")


# What is refused when it is imported.


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("bert, labels", {"position_embedding_type": "relative_key"}, "position_embedding_type = relative_key is not"),
        ("bert, labels", {"problem_type": "multi_label_classification"}, "problem_type = multi_label_classification"),
        ("bert, labels", {"id2label": {"0": "one"}}, "has fewer than two labels (1)"),
        ("bert, labels", {"id2label": {"0": "a", "2": "b"}}, "does not number labels from 0 on"),
        ("bert, labels", {"id2label": ["a", "b"]}, "does not give a name for each number"),
        ("bert, labels", {"id2label": {"0": "a", "1": "b"}}, "classifier.weight has (3, 32) instead of (2, 32)"),
        ("bert, labels", {"architectures": ["BertForThings"]}, "--as reads it as one of these"),
        ("roberta, words", {"pad_token_id": 0}, "pad_token_id = 0 is not supported"),
        ("roberta, words", {"type_vocab_size": 2}, "type_vocab_size = 2 is not supported"),
        ("vit", {"qkv_bias": False}, "settings: unknown: vit.encoder.layer.0.attention.a"),
        ("vit", {"patch_size": 5}, "does not divide"),
        ("marian", {"scale_embedding": False}, "scale_embedding = False is not supported"),
        ("pegasus", {"scale_embedding": None}, "scale_embedding = False is not supported"),
        ("marian", {"decoder_ffn_dim": None}, "config.json has no 'decoder_ffn_dim'"),
        ("marian", {"decoder_attention_heads": 2}, "decoder_attention_heads = 2 is not supported"),
        ("marian", {"decoder_start_token_id": 7}, "decoder_start_token_id = 7 is neither the padding"),
        ("marian", {"vocab_size": 10**12}, "config.json: vocab_size = 1000000000000 is too large"),
        ("marian", {"vocab_size": 10**6}, "model.shared.weight has (100, 32) instead of (1000000, 32)"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_there_is_named(name, options, told, tmp_path):
    path = saved(name, tmp_path / "theirs")
    (path / "generation_config.json").unlink(missing_ok=True)
    change(path / "config.json", **options)
    assert told in mistake("import", path, "--out", tmp_path / "runs/run")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "copy", "of"),
    [
        ("bert, words", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert, words", "cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("roberta, words", "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("roberta, words", "lm_head.decoder.bias", "lm_head.bias"),
        ("distilbert, words", "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
        ("marian", "lm_head.weight", "model.shared.weight"),
        ("marian", "model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("pegasus", "model.decoder.embed_tokens.weight", "model.shared.weight"),
    ],
)
def test_a_copy_of_a_tensor_is_one_or_is_refused(name, copy, of, tmp_path):
    path = saved(name, tmp_path / "theirs")
    tensors = read_tensors(path / "model.safetensors")
    save_file({**tensors, copy: tensors[of].clone()}, path / "model.safetensors")
    assert ayn("import", path, "--out", tmp_path / "run").code == 0
    save_file({**tensors, copy: tensors[of] + 1e-3}, path / "model.safetensors")
    told = mistake("import", path, "--out", tmp_path / "other")
    assert f"the tensor {copy} is not equal to {of}, although config.json says that both are one" in told
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 30, "forced_eos_token_id": None},
        {"max_length": 8, "forced_eos_token_id": 3},
        {"max_new_tokens": 7, "forced_eos_token_id": 3},
    ],
)
def test_a_translation_is_as_long_as_the_files_say(options, tmp_path):
    """A random model hardly ever ends by itself."""
    kind, config = CASES["marian"]
    theirs = make(kind, config, 2)
    theirs.generation_config.update(num_beams=1, bad_words_ids=[[0]], **options)
    save(theirs, tmp_path / "theirs")
    run = load(import_run(tmp_path / "theirs", tmp_path / "run", say=lambda line: None).path, device="cpu")
    found = []
    for text in ("cat", "a dog", "the cat sat on the mat"):
        (answer,) = run.answers([text])
        ids = torch.tensor([ids_of(run, text)])
        (wanted,) = theirs.generate(ids, **options).tolist()
        assert [0, *answer.tokens] == (wanted[:-1] if wanted[-1] == 3 else wanted)
        found.append(answer.reason)
    assert "length" in found


def test_an_export_asks_for_no_more_tokens_than_there_are_positions(tmp_path):
    run = run_of("marian", tmp_path)
    assert ayn("export", run, tmp_path / "back", "--to", "hf").code == 0
    assert json.loads((tmp_path / "back/generation_config.json").read_text())["max_new_tokens"] == 64


def test_an_import_can_be_replaced_but_not_continued(tmp_path):
    run = run_of("bert, labels", tmp_path)
    assert mistake("import", tmp_path / "theirs", "--out", run).endswith("already holds a run: --overwrite replaces it")


# Options that the config.json of well-known models have beside the usual ones.
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert-base-uncased-finetuned-sst-2-english": (
        "distilbert, labels",
        {"finetuning_task": "sst-2", "output_past": True, "tie_weights_": True, "sinusoidal_pos_embds": False},
    ),
    "dslim/bert-base-NER": (
        "bert, tags",
        {
            "_num_labels": 9, "output_past": True, "directionality": "bidi", "pooler_fc_size": 768,
            "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
            "pooler_type": "first_token_transform",
        },
    ),
    "deepset/roberta-base-squad2": ("roberta, answers", {"language": "english", "name": "Roberta"}),
    "Helsinki-NLP/opus-mt-en-de": (
        "marian",
        {
            "_num_labels": 3, "activation_dropout": 0.0, "add_bias_logits": False, "add_final_layer_norm": False,
            "bad_words_ids": [[0]], "classif_dropout": 0.0, "classifier_dropout": 0.0, "decoder_vocab_size": 100,
            "extra_pos_embeddings": 100, "forced_eos_token_id": 3, "max_length": 512, "normalize_before": False,
            "normalize_embedding": False, "num_beams": 4, "num_hidden_layers": 6, "static_position_embeddings": True,
            "share_encoder_decoder_embeddings": True, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_options_of_well_known_models_are_taken(name, tmp_path):
    like, options = KNOWN[name]
    path = saved(like, tmp_path / "theirs")
    (path / "generation_config.json").unlink(missing_ok=True)
    change(path / "config.json", **options)
    done = ayn("import", path, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    if like == "marian":
        assert load(tmp_path / "run").recipe.decode.beam == 4


def test_a_roberta_with_words_and_a_pooler(tmp_path):
    path = saved("roberta, words", tmp_path / "theirs")
    weights = transformers.RobertaForMaskedLM.from_pretrained(path).state_dict()
    pooler = {"roberta.pooler.dense.weight": torch.zeros(32, 32), "roberta.pooler.dense.bias": torch.zeros(32)}
    (path / "model.safetensors").unlink()
    torch.save({**weights, **pooler}, path / "pytorch_model.bin")
    done = ayn("import", path, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "not used: roberta.pooler.dense.bias, roberta.pooler.dense.weight" in done.out


def test_two_classes_of_one_name_are_told_apart(tmp_path):
    names = {"id2label": {0: "crane", 1: "egret", 2: "crane"}, "label2id": {"crane": 2, "egret": 1}}
    assert load(run_of("vit", tmp_path, **names)).task.labels == ["crane (0)", "egret", "crane (2)"]


def test_it_is_read_as_another_architecture(tmp_path):
    path = saved("bert, labels", tmp_path / "theirs")
    done = ayn("import", path, "--out", tmp_path / "run", "--as", "BertModel")
    assert done.code == 0, done.err
    assert "not used: classifier.bias, classifier.weight" in done.out
    assert load(tmp_path / "run").recipe.task_kind == "embed"
    assert "there is no BertForFun" in mistake("import", path, "--out", tmp_path / "no", "--as", "BertForFun")
    assert "there is no folder or file" in mistake("import", tmp_path / "nothing")
    (tmp_path / "a.zip").write_bytes(b"")
    assert "is not a model: give a folder" in mistake("import", tmp_path / "a.zip")


def test_settings_of_the_tokenizer_beside_its_file(tmp_path):
    path = saved("roberta, words", tmp_path / "theirs")
    (path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    import_run(path, tmp_path / "run", say=lambda line: None)
    tokenizer = load(tmp_path / "run").task.tokenizer
    assert tokenizer.encode("cat") == tokenizer.encode(" cat")
    path = saved("bert, words", tmp_path / "cased")
    (path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    import_run(path, tmp_path / "other", say=lambda line: None)
    tokenizer = load(tmp_path / "other").task.tokenizer
    assert tokenizer.encode("CAT") == [tokenizer.unk]


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.zeros(1).expand(100, 32), "repeats values"),
        (torch.eye(3).to_sparse(), "of a kind that models do not have"),
        (torch.zeros(2, dtype=torch.complex64), "of a kind that models do not have"),
        (torch.zeros(2, device="meta"), "of a kind that models do not have"),
    ],
)
def test_tensors_that_are_no_weights(tensor, told, tmp_path):
    path = saved("bert, words", tmp_path / "theirs")
    weights = transformers.BertForMaskedLM.from_pretrained(path).state_dict()
    (path / "model.safetensors").unlink()
    torch.save({**weights, "bert.embeddings.word_embeddings.weight": tensor}, path / "pytorch_model.bin")
    assert told in mistake("import", path, "--out", tmp_path / "run")


def test_a_classifier_without_its_pooler_is_not_one(tmp_path):
    path = saved("bert, labels", tmp_path / "theirs")
    weights = transformers.BertForSequenceClassification.from_pretrained(path).state_dict()
    (path / "model.safetensors").unlink()
    torch.save({name: t for name, t in weights.items() if "pooler" not in name}, path / "pytorch_model.bin")
    told = mistake("import", path, "--out", tmp_path / "run")
    assert "missing: bert.pooler.dense.weight, bert.pooler.dense.bias" in told


def test_the_older_names_of_norms(tmp_path):
    path = saved("bert, words and sentences", tmp_path / "theirs")
    model = transformers.BertForPreTraining.from_pretrained(path)
    names = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    older = {}
    for name, tensor in model.state_dict().items():
        for new, old in names.items():
            name = name.replace(new, old)
        older[name] = tensor
    (path / "model.safetensors").unlink()
    torch.save(older, path / "pytorch_model.bin")
    import_run(path, tmp_path / "run", say=lambda line: None)
    import_run(saved("bert, words and sentences", tmp_path / "new"), tmp_path / "other", say=lambda line: None)
    one, other = (load(tmp_path / name).model.state_dict() for name in ("run", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_the_generation_cannot_do_is_told(tmp_path):
    path = saved("marian", tmp_path / "theirs")
    generation = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 0, "early_stopping": True, "length_penalty": None}
    change(path / "generation_config.json", **generation, num_beams=2, stop_strings=["dog"])
    done = ayn("import", path, "--out", tmp_path / "run")
    assert "repetition_penalty is not used" in done.out
    assert "early_stopping is not used" in done.out
    assert done.out.count("is not used") == 2
    decode = load(tmp_path / "run").recipe.decode
    assert (decode.beam, decode.alpha, decode.stop) == (2, 1.0, ("dog",))
    change(path / "generation_config.json", do_sample=True, temperature=0.6, top_p=0.9)
    import_run(path, tmp_path / "drawn", say=lambda line: None)
    decode = load(tmp_path / "drawn").recipe.decode
    assert (decode.method, decode.temperature, decode.top_p, decode.top_k) == ("sample", 0.6, 0.9, 50)


# Chats.

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def chatting(tmp_path) -> Path:
    """A small GPT-2 with a chat template, and its folder."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    path = tmp_path / "chat"
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=specials)
    )
    config = {"vocab_size": 300, "n_positions": 80, "n_embd": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 0}
    model = make("GPT2LMHeadModel", config, 1)
    model.save_pretrained(path)
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    change(path / "generation_config.json", eos_token_id=[0, 2], max_new_tokens=9)
    return path


def test_a_chat_template_is_kept_and_used(chatting, tmp_path):
    import_run(chatting, tmp_path / "run", say=lambda line: None)
    run = load(tmp_path / "run")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(chatting / "tokenizer.json"))
    tokenizer.chat_template = CHAT
    asked = [{"role": "user", "content": "the cat?"}]
    wanted = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    prompt = run.predictor.read("the cat?", run.decode())
    assert prompt.ids == wanted
    assert prompt.stop == {2}
    assert run.recipe.decode.max_new == 9
    plain = run.predictor.read("the cat?", run.decode(chat=False))
    assert plain.ids == run.task.tokenizer.encode("the cat?")
    done = ayn("use", tmp_path / "run", "the cat?")
    assert done.code == 0, done.err
    assert not done.out.startswith("the cat?")  # an answer, not a text that goes on
    theirs = transformers.GPT2LMHeadModel.from_pretrained(chatting).eval()
    out = theirs.generate(
        torch.tensor([wanted]), max_new_tokens=9, do_sample=False, eos_token_id=[0, 2], pad_token_id=0
    )
    new = out[0, len(wanted) :].tolist()
    assert run.answers(["the cat?"])[0].tokens == [id for id in new if id not in (0, 2)]
    told = "has <|im_end|> in it, which marks the turns"
    assert told in mistake("use", tmp_path / "run", "the cat<|im_end|>")
    run.export(tmp_path / "back", "hf", say=lambda line: None)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert opened.apply_chat_template(asked, add_generation_prompt=True)["input_ids"] == wanted


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ '%300000000d' % 1 }}",
        "{{ 'a' | center(300000000) }}",
        "{% for a in",
        "{{ raise_exception('no system message') }}",
        "{{ nothing.there }}",
    ],
)
def test_a_template_that_reaches_too_far_is_refused(template, chatting, tmp_path):
    import_run(chatting, tmp_path / "run", say=lambda line: None)
    tokenizer = load(tmp_path / "run").task.tokenizer
    with pytest.raises(UserError, match="the chat template of this run cannot be used: "):
        fill_template(template, turn("hello"), tokenizer, {})


def test_a_template_without_an_end_is_not_imported(chatting, tmp_path):
    (chatting / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ 1 }}" * 10**6}))
    told = mistake("import", chatting, "--out", tmp_path / "run")
    assert "the chat template has 7,000,000 characters, and the most is 100,000" in told
    assert not (tmp_path / "run").exists()


def test_a_template_has_the_tokens_of_the_model(chatting, tmp_path):
    config = {"chat_template": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "eos_token": "<|im_end|>"}
    (chatting / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": {"content": "<|im_start|>"}}))
    import_run(chatting, tmp_path / "run", say=lambda line: None)
    run = load(tmp_path / "run")
    ids = ids_of(run, "the cat")
    assert ids == [1, *run.task.tokenizer.encode("the cat"), 2]


# hf: names.


@pytest.mark.slow
def test_load_takes_hf_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    path = saved("bert, labels", tmp_path / "theirs")
    first = allyouneed.load(f"hf:{path}")
    assert first.predict(TEXTS[0]) in ("sad", "glad", "neither")
    assert "imported" in capsys.readouterr().out
    assert allyouneed.load(f"hf:{path}").folder.path == first.folder.path
    assert "imported" not in capsys.readouterr().out
    save(make("BertForSequenceClassification", CASES["bert, labels"][1], 2), path)
    assert allyouneed.load(f"hf:{path}").folder.path != first.folder.path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="cannot be downloaded"):
        hub.imported("nobody/nothing-of-this-name", lambda line: None)
    with pytest.raises(UserError, match="there is no folder no such thing"):
        hub.imported("no such thing", lambda line: None)
    done = ayn("use", f"hf:{path}", TEXTS[0])
    assert done.code == 0, done.err
    assert f"imported    {path}" in ayn("info", f"hf:{path}").out
    assert "cannot be downloaded" in mistake("train", "classify/bert", "--init", "hf:nobody/bert")
    few = ("train.steps=2", "train.batch_tokens=512", f"train.init=hf:{path}")
    tuned = train("classify/bert", *few, out=tmp_path / "run")
    assert tuned.recipe.model.width == first.recipe.model.width


@pytest.mark.slow
def test_a_downloaded_model_is_found_by_its_name(tmp_path):
    kept = tmp_path / "hub" / "models--nobody--tiny"  # as huggingface_hub lays out its cache
    saved("bert, labels", kept / "snapshots" / "abc123")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc123")
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    for name, code in (("hf:nobody/tiny", 0), ("hf:nobody/other", 2), ("nobody/tiny", 2)):
        command = [sys.executable, "-m", "allyouneed", "import", name]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert "has hf: before its name" in done.stderr
    assert load(tmp_path / "runs" / "tiny").predict(TEXTS[0]) in ("sad", "glad", "neither")


# ayn export.


@pytest.fixture(scope="module")
def gpt(story, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gpt") / "run"
    train("lm/gpt", *TINY_LM, data=story, out=out, quiet=True)
    return out


def test_export_writes_a_folder_whole_or_not_at_all(gpt, tmp_path, monkeypatch):
    out = tmp_path / "deep/er/out"
    done = ayn("export", gpt, out, "--to", "hf")
    assert done.code == 0, done.err
    assert "a GPT2LMHeadModel for transformers" in done.out
    written = {path.name for path in out.iterdir()}
    assert written >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert "bits per byte" in (out / "README.md").read_text()
    assert "is not empty: give another" in mistake("export", gpt, out, "--to", "hf")
    assert ayn("export", gpt, out, "--to", "hf", "--overwrite").code == 0
    assert {path.name for path in out.iterdir()} == written
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    told = "is not an export, so it is not replaced"
    assert told in mistake("export", gpt, tmp_path / "mine", "--to", "hf", "--overwrite")
    assert (tmp_path / "mine/config.json").read_text() == "{}"
    rename = os.rename

    def interrupted(one: Any, other: Any) -> None:
        if Path(one).name == "new":
            raise KeyboardInterrupt
        rename(one, other)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(gpt).export(out, "hf", overwrite=True, say=lambda line: None)
    monkeypatch.undo()
    assert {path.name for path in out.iterdir()} == written  # the older one is back
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    with pytest.raises(UserError, match="there is no way to export to ''; there is ct2, hf, onnx"):
        load(gpt).export(tmp_path / "x")
    with pytest.raises(UserError, match=r"there is no way to export to '.*x'"):
        load(gpt).export("hf", str(tmp_path / "x"))
    with pytest.raises(UserError, match="for to ct2 only"):
        load(gpt).export(tmp_path / "x", "hf", numbers="int8")
    (tmp_path / "file").write_text("")
    assert "is a file: give the name of a folder" in mistake("export", gpt, tmp_path / "file", "--to", "hf")
    assert "there is no way to export to 'hg'" in mistake("export", gpt, tmp_path / "x", "--to", "hg")
    assert "for --to ct2 only" in mistake("export", gpt, tmp_path / "x", "--to", "hf", "--numbers", "int8")
    assert "cannot be written: choose float32 or int8" in mistake(
        "export", gpt, tmp_path / "x", "--to", "ct2", "--numbers", "int3"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "told"),
    [
        ("lm/gpt", ["model.score=cosine"], "no gpt with model.score = cosine"),
        ("lm/gpt", ["model.positions=none"], "model.positions = none"),
        (
            "lm/gpt",
            ["model.positions=rotary"],
            "nearest is GPT2LMHeadModel, with model.positions = learned: a training with that can be exported",
        ),
        ("lm/rnn", [], "no model like a run of 'rnn' for the task 'lm'; these can be exported: bert for answer"),
    ],
)
def test_what_transformers_cannot_express_is_named(recipe, settings, told, story, tmp_path):
    small = [setting for setting in TINY_LM if recipe == "lm/gpt" or "heads" not in setting]
    train(recipe, *small, *settings, data=story, out=tmp_path / "run", quiet=True)
    assert told in mistake("export", tmp_path / "run", tmp_path / "out", "--to", "hf")
    assert not (tmp_path / "out").exists()


def test_export_to_the_other_runtimes(gpt, pairs, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ctranslate2")
    train("translate/transformer", *TINY_TRANSLATE, data=pairs, out=tmp_path / "run", quiet=True)
    for run in (gpt, tmp_path / "run"):
        for to in ("onnx", "ct2"):
            out = tmp_path / f"{run.parent.name}-{to}"
            done = ayn("export", run, out, "--to", to)
            assert done.code == 0, done.err
            assert (out / "config.json").is_file()
    loaded = load(tmp_path / "run", "cpu")
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    loaded.export(tmp_path / "small", "ct2", "int8", say=lambda line: None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.model.state_dict().items())
