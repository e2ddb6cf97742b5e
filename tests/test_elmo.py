"""ELMo: words by their letters, two directions that never see what they foretell, and a body that moves house."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F

from allyouneed.batch import IGNORE, Tensors
from allyouneed.config import DataConfig, TextConfig
from allyouneed.data.opening import open_data
from allyouneed.decode import Request
from allyouneed.models.elmo import ELMo, ELMoBody, ELMoConfig, ELMoReader, reverse
from allyouneed.nn.heads import Mix
from allyouneed.nn.spelling import BEGIN, END, WIDTHS, Highway, LetterCNN, spell
from allyouneed.predict.processor import freeze_body
from allyouneed.run import load
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.text import Tokenizer
from commands import ayn
from generation import generate

WORDS = ["the", "bank", "Bank", "river", "unbelievable", "é", "a", "money", "on", "result"]


def vectors(model: ELMo, words: list[str]) -> torch.Tensor:
    """Of the words of one sentence, in every layer: (L + 1, T, 2D)."""
    with torch.no_grad():
        return torch.cat(model.body(model.body.words(torch.from_numpy(spell(words))[None]), torch.tensor([len(words)])))


def elmo(words: list[str] = WORDS, **values) -> ELMo:
    torch.manual_seed(0)
    base = {"vocab": len(words), "width": 12, "layers": 2, "filters": 3, "letters": 10, "dropout": 0.0}
    model = ELMo(ELMoConfig(**{**base, **values}))
    for name, p in model.named_parameters():  # livelier than at the start of training, so that differences show
        torch.nn.init.normal_(p, std=0.4) if "words" not in name else None
    model.spell(words)
    return model.eval()


class Reading(torch.nn.Module):
    """A body and the reader of its layers, as they stand in a classifier or tagger."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        self.body, self.reader = ELMoBody(config), ELMoReader(config)
        freeze_body(self.body, config.freeze)

    def forward(self, tensors: Tensors) -> torch.Tensor:
        return self.reader(self.body, tensors)


def reading(**values) -> Reading:
    torch.manual_seed(0)
    base = {"width": 12, "layers": 2, "filters": 3, "letters": 10, "reader": 7}
    return Reading(ELMoConfig(**{**base, **values})).eval()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_a_word_is_spelled_in_bytes_between_its_ends():
    letters = spell(["ab", "", "é"])
    assert letters.tolist() == [[BEGIN, 98, 99, END], [BEGIN, END, 0, 0], [BEGIN, 0xC3 + 1, 0xA9 + 1, END]]
    assert spell(["abcdef", "a"], 4).tolist() == [[BEGIN, 98, 99, 100], [BEGIN, 98, END, 0]]
    assert spell(["\udc80"]).tolist() == [[BEGIN, ord("?") + 1, END]]  # half a character has no bytes


def test_the_gate_of_a_highway_is_nearly_closed_at_first():
    new, gate = Highway(8).into(torch.zeros(8)).chunk(2)
    assert gate.tolist() == [-2.0] * 8
    assert new.abs().max() < 1


def test_the_letters_are_read_as_the_formula_says():
    cnn = LetterCNN(5, letters=20, filters=2).eval()
    word = torch.from_numpy(spell(["house"])).long()[0]
    letters = F.pad(cnn.letters(word), (0, 0, 0, 5))  # zeros behind the end
    found = []
    for w, convolution in zip(WIDTHS, cnn.convolutions):
        windows = torch.stack([letters[i : i + w].T for i in range(len(word))])  # (C, K, w)
        scores = torch.einsum("ikw,okw->io", windows, convolution.weight) + convolution.bias
        found.append(scores.relu().amax(0))
    x = torch.cat(found)
    for highway in cnn.highways:
        new, gate = highway.into(x).chunk(2)
        x = gate.sigmoid() * new.relu() + (1 - gate.sigmoid()) * x
    x = cnn.project(x)
    close(cnn(word[None])[0], (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt())


def test_any_spelling_has_a_vector_whatever_stands_beside_it():
    cnn = LetterCNN(8, letters=30, filters=3).eval()
    alone = [cnn(torch.from_numpy(spell([word])))[0] for word in ("zyzzyva", "cat", "Cat", "🦊", "incomprehensible")]
    together = cnn(torch.from_numpy(spell(["zyzzyva", "cat", "Cat", "🦊", "incomprehensible"])))
    close(torch.stack(alone), together)
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in itertools.combinations(together, 2))
    assert cnn(torch.zeros(2, 3, 6)).isfinite().all()  # words that are only padding
    cnn.most = 5
    long, short = cnn(torch.from_numpy(spell(["incomprehensible", "inc"])))
    torch.testing.assert_close(cnn(torch.from_numpy(spell(["incognito"])))[0], long)  # known by its beginning
    assert not torch.allclose(long, short, atol=1e-3)


def test_a_ragged_batch_gives_what_single_sentences_give():
    model, lengths = elmo(), torch.tensor([7, 3, 1, 5])
    ids = torch.randint(0, len(WORDS), (4, 7))
    together = torch.stack(model.body(model.words(ids), lengths))  # (L + 1, B, T, 2D)
    for row, length in enumerate(lengths):
        single = torch.stack(model.body(model.words(ids[row : row + 1, :length]), length[None]))
        close(together[:, row, :length], single[:, 0])


def test_forth_sees_no_future_and_back_no_past():
    model, ids, lengths = elmo(), torch.randint(0, 5, (2, 9)), torch.tensor([9, 7])
    other = ids.clone()
    other[:, 4] = 5 + torch.arange(2)  # one word is another
    before, after = (torch.stack(model.body(model.words(x), lengths)) for x in (ids, other))
    moved = (before - after).abs().unflatten(-1, (2, 12)).amax(-1) > 1e-7  # (L + 1, B, T, 2)
    for row, length in enumerate(lengths):
        forth, back = moved[:, row, :length].unbind(-1)  # (L + 1, T)
        assert not forth[:, :4].any()
        assert not back[:, 5:].any()
        assert forth[1:, 4:].all()
        assert back[1:, :5].all()
        assert forth[0].nonzero().tolist() == back[0].nonzero().tolist() == [[4]]  # layer 0 knows the word alone


def test_back_is_forth_over_the_reversed_sentence():
    model, lengths = elmo(), torch.tensor([6, 4])
    words = model.words(torch.randint(0, len(WORDS), (2, 6)))
    swapped = copy.deepcopy(model.body)
    swapped.forward_layers, swapped.backward_layers = model.body.backward_layers, model.body.forward_layers
    for here, there in zip(model.body(words, lengths), swapped(reverse(words, lengths), lengths)):
        forth, back = here.chunk(2, dim=-1)
        close(torch.cat([back, forth], dim=-1), reverse(there, lengths))


def test_reverse_leaves_the_padding_behind():
    x = torch.arange(10.0).view(2, 5, 1)
    assert reverse(x, torch.tensor([5, 3]))[..., 0].tolist() == [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]]


def test_layers_stand_on_each_other():
    model, words = elmo(layers=3), ["the", "river", "bank"]
    layers = vectors(model, words)
    assert layers.shape == (4, 3, 24)
    torch.testing.assert_close(layers[0, :, :12], layers[0, :, 12:])
    first = model.body.forward_layers[0](layers[:1, :, :12])[0][0]
    close(layers[1, :, :12], first)
    close(layers[2, :, :12], first + model.body.forward_layers[1](first[None])[0][0])


def test_the_loss_is_the_mean_of_both_directions():
    model = elmo()
    torch.nn.init.normal_(model.head.out.weight, std=3.0)  # sure of itself, so that no two words cost the same
    text = torch.randint(0, len(WORDS), (2, 7))
    ids, targets = text[:, :-1], text[:, 1:].clone()
    targets[1, 3:] = IGNORE  # the second text has only four words
    total = torch.zeros(())
    for row in (text[0], text[1, :4]):
        top = model.body(model.words(row[None]), torch.tensor([len(row)]))[-1][0]
        forth, back = (model.head(h).log_softmax(-1) for h in top.chunk(2, dim=-1))
        for t in range(len(row) - 1):
            total = total - 0.5 * (forth[t, row[t + 1]] + back[t + 1, row[t]])
    close(model.loss(ids, targets), total)


def test_what_comes_out_of_the_last_lstm_is_dropped_in_training():
    """With all of it dropped, the head knows no more than its bias."""
    model = elmo(dropout=1.0)
    text = torch.randint(0, len(WORDS), (2, 7))
    blind = F.cross_entropy(model.head.out.bias.expand(12, -1), text[:, 1:].flatten(), reduction="sum")
    blind = blind + F.cross_entropy(model.head.out.bias.expand(12, -1), text[:, :-1].flatten(), reduction="sum")
    seeing = model.loss(text[:, :-1], text[:, 1:])
    close(model.train().loss(text[:, :-1], text[:, 1:]), 0.5 * blind)
    assert not torch.isclose(seeing, 0.5 * blind, rtol=1e-2)


def test_words_are_written_step_by_step_as_they_are_read():
    model, prompts = elmo(), [[3, 1, 4, 1, 5], [2], [7, 1]]
    logits, state = model.start(prompts, 8)
    more = torch.tensor([6, 5, 3])
    after = model.step(more, state)
    for row, prompt in enumerate(prompts):
        close(logits[row], model(torch.tensor([prompt]))[0, -1])
        close(after[row], model(torch.tensor([[*prompt, int(more[row])]]))[0, -1])
    assert state.length.tolist() == [6, 2, 3]
    together = [row[1] for row in generate(model, [Request(p, max_new=6) for p in prompts], rows=2)]
    assert together == [next(generate(model, [Request(p, max_new=6)], rows=1))[1] for p in prompts]


def test_the_mix_is_a_weighted_sum_of_the_layers():
    layers = list(torch.randn(3, 2, 4, 5))
    mix = Mix(3, "softmax")
    close(mix(layers), torch.stack(layers).mean(0))  # all alike at first
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(3.0)
    parts = torch.tensor([0.5, -1.0, 2.0]).softmax(0)
    close(mix(layers), 3 * (parts[0] * layers[0] + parts[1] * layers[1] + parts[2] * layers[2]))
    mix(layers).square().sum().backward()
    assert mix.weights.grad.abs().min() > 0
    assert Mix(3, "last")(layers) is layers[2]


def test_the_sum_adds_what_both_directions_say():
    """As wide as one direction; layer 0 is the same word in both, and counts in both."""
    model, words = elmo(), ["the", "river", "bank"]
    layers = vectors(model, words)
    forth, back = layers[..., :12], layers[..., 12:]
    found = Mix(3, "sum")(list(layers))
    close(found, 2 * forth[0] + forth[1] + forth[2] + back[1] + back[2])
    tensors = {"chars": torch.from_numpy(spell(words))[None], "lengths": torch.tensor([3])}
    for freeze in ("body", ""):
        summing = reading(mix="sum", freeze=freeze)
        mixed = summing.reader.mix(summing.body(summing.body.words(tensors["chars"]), tensors["lengths"]))
        assert mixed.shape == (1, 3, 12)
        assert summing(tensors).shape == (1, 3, summing.reader.width) == (1, 3, 14)
        summing(tensors).sum().backward()
        assert all((p.grad is None) == bool(freeze) for p in summing.body.parameters())


def test_a_reader_reads_a_batch_as_it_reads_single_sentences():
    model = reading()
    sentences = [["by", "the", "river"], ["money"], ["on", "the", "result", "we", "bank"]]
    lengths = torch.tensor([3, 1, 5])
    letters = torch.from_numpy(spell([w for s in sentences for w in [*s, *[""] * (5 - len(s))]])).view(3, 5, -1)
    together = model({"chars": letters, "lengths": lengths})
    assert together.shape == (3, 5, model.reader.width)
    for row, sentence in enumerate(sentences):
        alone = model({"chars": torch.from_numpy(spell(sentence))[None], "lengths": lengths[row : row + 1]})
        close(together[row, : len(sentence)], alone[0])


def test_what_a_reader_reads_is_dropped_in_training_alone():
    tensors = {"chars": torch.from_numpy(spell(["by", "the", "bank"]))[None], "lengths": torch.tensor([3])}
    model = reading(freeze="body", dropout=0.5)  # a body that drops nothing
    for training in (True, False):
        model.train(training)
        assert torch.equal(model(tensors), model(tensors)) != training


def test_a_frozen_body_drops_nothing_and_has_no_gradient():
    tensors = {"chars": torch.from_numpy(spell(["by", "the", "bank"]))[None], "lengths": torch.tensor([3])}
    for freeze in ("body", ""):
        model = reading(freeze=freeze, dropout=0.5).train()
        model.reader.dropout.eval()  # of the reader itself, which always drops
        twice = [model(tensors) for _ in range(2)]
        assert torch.equal(*twice) == bool(freeze)
        twice[0].sum().backward()
        assert all((p.grad is None) == bool(freeze) for p in model.body.parameters())
        assert model.reader.lstm.layers[0].weight_hh_l0.grad.abs().sum() > 0


BANKS = {
    "river": [
        f"{who} {did} on the bank of the {water}"
        for who in ("we", "they", "he") for did in ("sat", "slept", "fished") for water in ("river", "stream", "lake")
    ],
    "money": [
        f"the bank in {town} {gave} {who} some {money}"
        for town in ("town", "London", "Rome") for gave in ("lent", "paid") for who in ("us", "him", "her")
        for money in ("money", "cash")
    ],
    "trust": [
        f"{who} can bank on {whose} {thing}"
        for who in ("we", "they", "you") for whose in ("the", "her", "this") for thing in ("result", "answer", "plan")
    ],
}  # fmt: skip


@pytest.mark.slow
def test_three_banks_are_three_vectors_of_one_spelling():
    """By the river, with the money, on the result: in sentences that training never saw."""
    train = [s for sentences in BANKS.values() for i, s in enumerate(sentences) if i % 3]
    tokenizer = Tokenizer.train([f"{s}\n" for s in train], TextConfig(kind="word"))
    model = elmo([tokenizer.token(id) for id in range(len(tokenizer))], width=24)
    rows = [torch.tensor([*tokenizer.encode(s), tokenizer.eos]) for s in train]
    text = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORE)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(60):
        loss = model.loss(text[:, :-1].clamp(min=0), text[:, 1:]) / (text[:, 1:] != IGNORE).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    unseen = [(sense, s.split()) for sense, sentences in BANKS.items() for s in sentences[::3]]
    banks = torch.stack([vectors(model, words)[:, words.index("bank")] for _, words in unseen])  # (N, L + 1, 2D)
    close(banks[:, 0], banks[:1, 0].expand_as(banks[:, 0]))
    senses = [sense for sense, _ in unseen]
    top = F.normalize(banks[:, 1:].mean(1), dim=-1)
    alike = (top @ top.T).fill_diagonal_(-1)
    kin = torch.tensor([[a == b for b in senses] for a in senses]).fill_diagonal_(False)
    far = torch.tensor([[a != b for b in senses] for a in senses])
    assert alike[kin].min() > alike[far].max() + 0.05  # banks of one kind are alike, of two kinds they are not


def test_a_run_writes_tells_and_scores(pretrained):
    assert ayn("use", pretrained, "one two").code == 0
    table = ayn("use", pretrained, "one two", "--table")
    assert table.code == 0
    assert "one" in table.out
    scored = ayn("test", pretrained)
    assert "directions:mean of both" in scored.out
    run = load(pretrained)
    assert vectors(run.model, ["one", "fourteen", "."]).shape == (3, 3, 32)  # a word that is in no vocabulary, too
    unspelled = read_tensors(pretrained / "model.safetensors")
    assert all(name.startswith(("body.", "head.")) for name in unspelled)
    assert run.model.spelling.count_nonzero()


@pytest.mark.slow
def test_reviews_are_documents(mirror):
    data = open_data(DataConfig(name="imdb-unlabelled", mirror=str(mirror)), "text")
    first = next(iter(data.splits["valid"].documents()))
    assert "<br" not in "".join(first)
    assert [data.splits[name].examples for name in ("valid", "test")] == [500, 500]
