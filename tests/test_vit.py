"""ViT: equal to Hugging Face's; patches, positions and images of other sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from allyouneed.config import build
from allyouneed.errors import UserError
from allyouneed.models.labeller import Labeller
from allyouneed.models.vit import ViTBody, ViTConfig, cut_patches, positions_2d, resize_positions
from allyouneed.nn.heads import ClassifyHead
from allyouneed.nn.layers import Drop
from allyouneed.nn.trace import Trace

SMALL = ViTConfig(image=12, patch=3, channels=3, width=32, heads=4, layers=2, hidden=48, dropout=0.0, norm_eps=1e-12)


def labeller(config: ViTConfig, pool: str = "first", classes: int = 5) -> Labeller:
    """With weights larger than at the start, so that every part counts."""
    torch.manual_seed(3)
    model = Labeller(ViTBody(config), ClassifyHead(config.width, classes, pool, around=(1, 0))).eval()
    for p in model.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    return model


def images(config: ViTConfig, count: int = 3) -> dict[str, torch.Tensor]:
    shape = (count, config.channels, config.image, config.image)
    pixels = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return {"pixels": pixels, "lengths": torch.full((count,), config.tokens)}


def theirs(ours: Labeller, config: ViTConfig) -> torch.nn.Module:
    """transformers' model with our weights."""
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification

    found = ViTForImageClassification(
        TheirConfig(
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.hidden or 4 * config.width,
            hidden_act=config.activation,
            layer_norm_eps=config.norm_eps,
            image_size=config.image,
            patch_size=config.patch,
            num_channels=config.channels,
            num_labels=ours.head.out.out_features,
            attn_implementation="eager",
        )
    ).eval()
    live, own = dict(found.named_parameters()), ours.state_dict()
    used = set()

    def put(name: str, value: torch.Tensor) -> None:
        live[name].data.copy_(value.reshape(live[name].shape))
        used.add(name)

    def like(*words: str) -> str:
        """The parameter whose name has all of these words."""
        (name,) = [name for name in live if all(word in name for word in words)]
        return name

    put(like("cls_token"), own["body.patches.cls"])
    put(like("position_embeddings"), own["body.patches.positions.table.weight"])
    for part in ("weight", "bias"):
        put(like("projection", part), own[f"body.patches.into.{part}"])
        put(f"vit.layernorm.{part}", own[f"body.stack.norm.{part}"])
        put(f"classifier.{part}", own[f"head.out.{part}"])
        for i in range(config.layers):
            block = f"body.stack.blocks.{i}"
            whole = own[f"{block}.attention.qkv.{part}"]
            layer = next(name for name in live if f".{i}." in name).partition(f".{i}.")[0] + f".{i}."
            for names, piece in zip((("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")), whole.chunk(3)):
                (name,) = [n for n in live if n.startswith(layer) and n.endswith(part) and any(w in n for w in names)]
                put(name, piece)
            rest = [n for n in live if n.startswith(layer) and n.endswith(part) and n not in used]
            before, after = (next(n for n in rest if word in n) for word in ("layernorm_before", "layernorm_after"))
            put(before, own[f"{block}.attention_norm.{part}"])
            put(after, own[f"{block}.feed_forward_norm.{part}"])
            out = next(n for n in rest if "attention" in n)
            put(out, own[f"{block}.attention.out.{part}"])
            first, second = [n for n in rest if n not in (before, after, out)]
            put(first, own[f"{block}.feed_forward.into.{part}"])
            put(second, own[f"{block}.feed_forward.out.{part}"])
    assert used == live.keys()
    return found


@pytest.mark.parametrize(
    "change",
    [{}, {"channels": 1, "activation": "relu"}, {"layers": 3, "heads": 2, "hidden": 0}, {"image": 16, "patch": 8}],
    ids=str,
)
@torch.inference_mode()
def test_it_equals_transformers(change):
    config = replace(SMALL, **change)
    ours, given, trace = labeller(config), images(config), Trace("embeddings", "layers")
    logits, model = ours(given, trace=trace), theirs(ours, config)
    output = model(pixel_values=given["pixels"], output_hidden_states=True)
    assert torch.allclose(logits, output.logits, atol=1e-5)
    for own, other in zip([*trace.of("embeddings"), *trace.of("layers")], output.hidden_states, strict=True):
        assert torch.allclose(own, other, atol=1e-5)


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "sinusoidal_2d", "none"])
@torch.inference_mode()
def test_a_batch_is_its_images(pool, positions):
    config = replace(SMALL, positions=positions)
    model, given = labeller(config, pool), images(config)
    together = model(given)
    for i in range(3):
        alone = model({name: t[i : i + 1] for name, t in given.items()})
        assert torch.allclose(together[i], alone[0], atol=1e-6)


@torch.inference_mode()
def test_only_positions_tell_where_a_patch_is():
    """With all patches swapped at random, [CLS] sees the same set of patches: without positions, the same image."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5))
    for positions in ("none", "learned", "sinusoidal", "sinusoidal_2d"):
        config = replace(SMALL, positions=positions)
        model, given = labeller(config), images(config)
        swapped = cut_patches(given["pixels"], 3)[:, order].view(3, 4, 4, 3, 3, 3).permute(0, 3, 1, 4, 2, 5)
        other = {**given, "pixels": swapped.reshape(given["pixels"].shape)}
        assert torch.allclose(model(given), model(other), atol=1e-5) == (positions == "none")


@torch.inference_mode()
def test_a_head_with_a_hidden_layer_is_its_formula():
    """W tanh(V h + c) + b; without it, W h + b and no further weights."""
    hidden, lengths = torch.randn(3, 17, 32), torch.full((3,), 17)
    plain, deep = ClassifyHead(32, 5, "first").eval(), ClassifyHead(32, 5, "first", hidden=7).eval()
    assert list(plain.state_dict()) == ["out.weight", "out.bias"]
    torch.testing.assert_close(plain(hidden, lengths), hidden[:, 0] @ plain.out.weight.T + plain.out.bias)
    inner = (hidden[:, 0] @ deep.into[0].weight.T + deep.into[0].bias).tanh()
    assert inner.shape == (3, 7)
    torch.testing.assert_close(deep(hidden, lengths), inner @ deep.out.weight.T + deep.out.bias)


def test_patches_are_a_convolution():
    config = SMALL
    body, given = ViTBody(config), images(config)["pixels"]
    own = body.patches.into(cut_patches(given, 3))
    weight = body.patches.into.weight.view(32, 3, 3, 3)
    convolved = F.conv2d(given, weight, body.patches.into.bias, stride=3)
    assert torch.allclose(own, convolved.flatten(2).transpose(1, 2), atol=1e-6)


def test_patches_make_the_square_small():
    pixels = ViTConfig(image=256, patch=1, width=4, heads=1)
    assert pixels.tokens - 1 == 65_536
    assert (pixels.tokens - 1) ** 2 == 4_294_967_296
    patches = ViTConfig(image=256, patch=16, width=4, heads=1)
    assert (patches.tokens - 1) ** 2 == 65_536
    assert ViTConfig(image=224, patch=16, width=4, heads=1).grid == 14


def test_positions_of_another_size_lie_between():
    table = torch.cat(
        [
            torch.full((1, 2), 9.0),
            torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).view(16, 2),
        ]
    )
    same = resize_positions(table, 4, 4)
    assert same is table
    larger = resize_positions(table, 8, 8)
    assert larger.shape == (65, 2)
    assert torch.equal(larger[0], table[0])
    rows = larger[1:, 0].view(8, 8)
    assert (rows.diff(dim=0) > 0).all()  # still grows from row to row
    assert torch.allclose(rows, rows[:, :1].expand(-1, 8), atol=1e-5)  # and not from column to column
    places = positions_2d(3, 5, 8, torch.device("cpu")).view(3, 5, 8)
    assert torch.equal(places[0, :, :4], places[0, :1, :4].expand(5, -1))
    assert not torch.equal(places[0, 0, :4], places[1, 0, :4])


@torch.inference_mode()
def test_a_larger_image_is_read_with_positions_between():
    model = labeller(SMALL)
    assert model({"pixels": torch.randn(1, 3, 18, 24), "lengths": torch.tensor([49])}).shape == (1, 5)


def test_stochastic_depth_leaves_out_whole_rows():
    torch.manual_seed(0)
    drop = Drop(0.0, 0.25)
    x = torch.ones(2000, 3, 4)
    found = drop(x)
    assert torch.equal(found, found[:, :1, :1].expand_as(found))
    assert (found[:, 0, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert found.mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(drop.eval()(x), x)
    body = ViTBody(replace(SMALL, layers=3, drop_path=0.2))
    assert [block.dropout.rows for block in body.stack.blocks] == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"image": 32, "patch": 5},
            "model.patch = 5 does not divide model.image = 32: choose one that does, such as 4",
        ),
        ({"channels": 5}, "model.channels = 5 is too large"),
        ({"positions": "sinusoidal_2d", "width": 6, "heads": 1}, "a model.width that 4 divides"),
    ],
)
def test_settings_that_do_not_fit(values, told):
    with pytest.raises(UserError, match=told):
        build(ViTConfig, values, "model")
