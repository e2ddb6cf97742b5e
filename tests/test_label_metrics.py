"""Labels and entities: the schemes of tags, and scores that equal scikit-learn's and seqeval's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import classification_report as seqeval_report
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.metrics import precision_score as seqeval_precision
from seqeval.metrics import recall_score as seqeval_recall
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from allyouneed.data.formats.conll import Span, TagCounts, spans, tagged
from allyouneed.metrics import confusion, entity_scores, label_scores

KINDS = ("person", "creative-work", "x")
TAGS = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in KINDS)]
SCHEMES = ("IOB1", "IOB2", "IOBES")

tags = st.lists(st.sampled_from(TAGS), min_size=1, max_size=12)
two_taggings = st.lists(tags, min_size=1, max_size=6).flatmap(
    lambda truth: st.tuples(
        st.just(truth),
        st.tuples(*(st.lists(st.sampled_from(TAGS), min_size=len(t), max_size=len(t)) for t in truth)).map(list),
    )
)
# What tagging programs disagree on: I without B, changes of type, E and S in odd places, entities that touch.
ADVERSARIAL = [
    "I-x", "O I-x", "E-x", "S-x", "B-x B-x", "I-x B-x", "B-x I-person", "B-x I-person I-x", "I-x I-person E-x",
    "B-x E-x I-x", "S-x I-x", "S-x E-x", "E-x E-x", "B-x S-x I-x", "B-x O I-x", "I-x E-x B-x E-x", "B-x I-x E-x E-x",
    "B-creative-work I-creative-work", "I-creative-work I-x",
]  # fmt: skip


def both(guess: list[str]) -> list[tuple[str, int, int]]:
    """Seqeval's ends are inside."""
    return [(kind, start, end + 1) for kind, start, end in get_entities(guess)]


@given(tags)
@settings(max_examples=400, deadline=None)
def test_entities_are_those_of_seqeval(sentence):
    assert spans(sentence) == both(sentence)


@pytest.mark.parametrize("sentence", ADVERSARIAL)
def test_entities_are_those_of_seqeval_where_programs_disagree(sentence):
    assert spans(sentence.split()) == both(sentence.split())


@pytest.mark.slow
@given(two_taggings)
@settings(max_examples=300, deadline=None)
def test_entity_scores_equal_seqeval(taggings):
    truth, guesses = taggings
    scores = {
        score.name: score.value / 100 for score in entity_scores([spans(t) for t in truth], [spans(t) for t in guesses])
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {"precision": seqeval_precision, "recall": seqeval_recall, "F1": seqeval_f1}
        for name, function in theirs.items():
            assert scores[name] == pytest.approx(function(truth, guesses, zero_division=0), abs=1e-12)
        if any(spans(t) for t in (*truth, *guesses)):
            report = seqeval_report(truth, guesses, output_dict=True, zero_division=0)
            types = {kind: row for kind, row in report.items() if not kind.endswith(" avg")}
            assert {name.split(" ", 1)[1] for name in scores if " " in name} == set(types)
            for kind, row in types.items():
                mine = [scores[f"{name} {kind}"] for name in ("precision", "recall", "F1")]
                assert mine == pytest.approx([row["precision"], row["recall"], row["f1-score"]], abs=1e-12)


def test_an_entity_is_right_only_in_its_sentence():
    one, other = [Span("x", 0, 1)], [Span("x", 0, 2)]
    assert [score.value for score in entity_scores([one, other], [other, one])] == [0.0] * 6
    assert (
        entity_scores([one, other], [one, other], "|IOB2")[0].signature
        == "entities|IOB2|true:2|found:2|ci95:bootstrap-1000"
    )
    with pytest.raises(ValueError, match="2 guesses for 1 sentences"):
        entity_scores([one], [one, other])


@pytest.mark.slow
@given(
    st.integers(2, 7).flatmap(
        lambda classes: st.tuples(
            st.just(classes),
            st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40),
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_label_scores_equal_scikit_learn(drawn):
    classes, rows = drawn
    truth, guesses = zip(*rows)
    table = confusion(truth, guesses, classes)
    np.testing.assert_array_equal(table, confusion_matrix(truth, guesses, labels=range(classes)))
    accuracy, macro = label_scores(table, "|split:test")
    assert accuracy.value == pytest.approx(100 * accuracy_score(truth, guesses))
    assert macro.value == pytest.approx(100 * f1_score(truth, guesses, average="macro", zero_division=0))
    assert accuracy.signature == f"exact|classes:{len({*truth, *guesses})}|split:test|n:{len(rows)}|ci95:exact"
    assert (accuracy.name, macro.name) == ("accuracy", "macro-F1")


def test_nothing_cannot_be_scored():
    with pytest.raises(ValueError, match="nothing to score"):
        label_scores(np.zeros((3, 3), dtype=int))


@given(tags, st.sampled_from(SCHEMES))
@settings(max_examples=300, deadline=None)
def test_every_scheme_gives_the_entities_back(sentence, scheme):
    there = spans(sentence)
    written = tagged(there, len(sentence), scheme)
    assert spans(written) == there
    assert {tag[0] for tag in written} <= set({"IOB1": "OBI", "IOB2": "OBI", "IOBES": "OBIES"}[scheme])
    if scheme == "IOB2":
        assert all(written[span.start][0] == "B" for span in there)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_is_detected(scheme):
    """Two names of one type that touch, two that do not, one of a single word."""
    entities = [Span("x", 0, 2), Span("x", 2, 3), Span("person", 3, 5), Span("x", 6, 7)]
    counts = TagCounts()
    counts.add(tagged(entities, 8, scheme))
    assert counts.scheme == scheme
    assert counts.describe() == f"{scheme} tags"


@pytest.mark.parametrize(
    ("sentences", "told"),
    [
        (["I-x O", "O I-x"], "IOB1 tags"),  # no B at all
        (["B-x O", "O"], "IOB2 tags"),
        (["O"], "IOB2 tags"),
        (["I-x B-x"], "IOB1 tags"),
        (["B-x I-x", "I-x"], "IOB2 tags (entities that begin with I- or E-, read as if with B-: 1)"),
        (["S-x", "E-x"], "IOBES tags (entities that begin with I- or E-, read as if with B-: 1)"),
    ],
)
def test_what_does_not_fit_a_scheme_is_said(sentences, told):
    counts = TagCounts()
    for sentence in sentences:
        counts.add(sentence.split())
    assert counts.describe() == told
