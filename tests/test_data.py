"""The data files are the ones their page describes: listed, checksummed, licensed, of the stated shape."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).resolve().parent.parent / "data"
ROW = re.compile(r"^\| `(?P<name>[\w./]+)` \|.*\| `(?P<sha>[0-9a-f]{64})` \|$", re.M)
LISTED = dict(ROW.findall((DATA / "README.md").read_text(encoding="utf-8")))


def test_every_file_is_listed_and_every_listed_file_exists():
    described = {"README.md"} | {p.relative_to(DATA).as_posix() for p in (DATA / "LICENSES").iterdir()}
    present = {p.relative_to(DATA).as_posix() for p in DATA.rglob("*") if p.is_file()}
    assert present - described == set(LISTED)


@pytest.mark.parametrize("name", sorted(LISTED))
def test_checksum(name):
    assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == LISTED[name]


def test_every_licence_text_is_named_on_the_page():
    page = (DATA / "README.md").read_text(encoding="utf-8")
    texts = {p.name for p in (DATA / "LICENSES").iterdir()}
    assert set(re.findall(r"`LICENSES/([\w.-]+)`", page)) == texts
    assert all(len((DATA / "LICENSES" / name).read_text(encoding="utf-8")) > 500 for name in texts)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "uwb_indoor_mrpt",
            dict(
                t=(343,),
                odom=(343, 3),
                ranges=(343, 3),
                anchors=(3, 3),
                tag_offset=(3,),
                gt_xyphi=(343, 3),
            ),
        ),
        (
            "uwb_labyrinth",
            dict(
                t=(233,),
                range=(233,),
                anchor_xy=(233, 2),
                anchor_id=(233,),
                wheel_v=(233, 2),
                half_track=(),
                gt_xy=(233, 2),
            ),
        ),
        (
            "jacksboro_fault_dem",
            dict(elevation=(344, 403), xmin=(), xmax=(), ymin=(), ymax=(), dx=(), dy=()),
        ),
    ],
)
def test_tracking_shapes(name, shapes):
    with np.load(DATA / "tracking" / f"{name}.npz", allow_pickle=False) as z:
        assert {key: z[key].shape for key in z.files} == shapes


@pytest.mark.parametrize(
    ("name", "skip", "column", "length", "total"),
    [
        ("nile.csv", 1, 1, 100, 91935.0),
        ("gbpusd_1981_1985.csv", 1, 1, 946, None),
        ("lg100.txt", 0, None, 100, None),
        ("nutria.txt", 0, None, 120, None),
    ],
)
def test_series(name, skip, column, length, total):
    delimiter = "," if name.endswith("csv") else None
    y = np.loadtxt(DATA / "timeseries" / name, delimiter=delimiter, skiprows=skip, usecols=column)
    assert y.shape == (length,) and np.isfinite(y).all()
    if total is not None:
        assert y.sum() == total


def test_language_model_logits_are_those_of_the_reference():
    reference = json.loads((DATA / "logprob" / "smollm2_reference.json").read_text(encoding="utf-8"))
    with np.load(DATA / "logprob" / "smollm2_logits_f16.npz", allow_pickle=False) as z:
        logits, targets, tokens, positions = (z[k] for k in ("logits", "targets", "token_ids", "positions"))
    assert logits.shape == (6, reference["vocab"]) and logits.dtype == np.float16
    assert tokens.tolist() == reference["token_ids"]
    assert np.array_equal(tokens[positions + 1], targets)
    assert [row["target"] for row in reference["rows"]] == targets.tolist()
    assert [row["max"] for row in reference["rows"]] == logits.max(axis=1).tolist()


def test_odometry_row_k_is_the_motion_from_step_k_to_k_plus_1():
    """Row k fits the reference motion from step k to k + 1 better than row k - 1 does."""
    with np.load(DATA / "tracking" / "uwb_indoor_mrpt.npz") as z:
        odom, truth = z["odom"], z["gt_xyphi"]
    step = np.diff(truth[1:, :2], axis=0)  # step k -> k + 1 for k = 1 ... 341, in the room
    heading = truth[1:-1, 2]

    def misfit(u):
        c, s = np.cos(heading), np.sin(heading)
        moved = np.column_stack([c * u[:, 0] - s * u[:, 1], s * u[:, 0] + c * u[:, 1]])
        return np.sqrt(np.mean(np.sum((moved - step) ** 2, axis=1)))

    assert misfit(odom[1:-1]) < misfit(odom[:-2])


def test_digits():
    with np.load(DATA / "pc" / "mnist_t10k_even5000.npz", allow_pickle=False) as z:
        images, labels = z["images"], z["labels"]
    assert images.shape == (5000, 28, 28) and images.dtype == labels.dtype == np.uint8
    assert labels.shape == (5000,) and set(labels.tolist()) == set(range(10))
    on = images[:4500].reshape(4500, -1) > 127
    p = (on.sum(0) + 0.1) / (4500 + 0.2)
    unseen = images[4500:].reshape(500, -1) > 127
    mean = np.where(unseen, np.log(p), np.log(1 - p)).sum(1).mean()
    assert mean == pytest.approx(-211.361, abs=0.05)  # pixels on their own, as data/README.md says
