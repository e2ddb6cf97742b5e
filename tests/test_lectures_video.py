"""The topic "video": frames are tokens, and only their positions tell which way a clip runs."""

from __future__ import annotations

import json

import pytest
import torch

from allyouneed import lectures
from allyouneed.lectures import video
from allyouneed.lectures.base import Lecture
from commands import mistake


def frames(strips: torch.Tensor) -> torch.Tensor:
    return video.read(strips, True)["pixels"].view(len(strips), video.FRAMES, video.SIDE, video.SIDE)


def test_a_clip_that_runs_backwards_has_another_label():
    """The label follows from how the lit pixels move and how many they are; it turns with the order of the frames."""
    strips, labels = video.clips(200, 1)
    lit = (frames(strips) > 0.3).float()
    areas = lit.sum((2, 3))
    across = (lit.sum(2) @ torch.arange(float(video.SIDE))) / areas.clamp_min(1)
    for area, place, label in zip(areas, across, labels):
        name = video.LABELS[label]
        growth, way = area[-1] - area[0], place[-1] - place[0]
        assert {"grows": growth > 20, "shrinks": growth < -20, "right": way > 3, "left": way < -3}[name]
        assert abs(growth) < 10 or name in ("grows", "shrinks")
    assert set(labels.tolist()) == set(range(4))


def test_frames_are_cut_in_their_order():
    strips, _ = video.clips(3, 1)
    cut = frames(strips)
    for i in range(video.FRAMES):
        part = strips[:, 0, :, i * video.SIDE : (i + 1) * video.SIDE] - 0.1
        torch.testing.assert_close(cut[:, i], part)
    assert video.read(strips, False)["lengths"].tolist() == [1 + video.FRAMES] * 3


@pytest.mark.slow
def test_the_order_of_the_frames_is_what_positions_tell(tmp_path):
    lectures.show("video", Lecture(tmp_path, lambda text: None))
    found = json.loads((tmp_path / "video.json").read_text())["numbers"]
    assert set(found) == set(video.MODELS)
    assert min(found["frames and positions"]) > 90
    assert max(found["no positions"]) < 60
    assert max(found["mean over the frames"]) < 60
    for name in ("video", "video-clips"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").is_file()


def test_it_makes_its_own_models(tmp_path):
    assert "'video' makes its own models" in mistake("lecture", "video", "--out", tmp_path, "--run", tmp_path)
    assert "takes no text of your own" in mistake("lecture", "video", "a text", "--out", tmp_path)
