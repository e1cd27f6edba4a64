"""Indexes and buckets of distances against the formulas, pair by pair, and the golden numbers."""

import re

import numpy as np
import oracle_relative
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import posenc_ext

LENGTHS = [(1, 1), (5, 5), (1, 9), (3, 7), (7, 3), (4, 1), (150, 400)]


def as_matrix(index, q_len, k_len):
    """What relative_gather reads for query i and key j."""
    i, j = np.arange(q_len)[:, None], np.arange(k_len)
    return index.numpy()[j - i + q_len - 1]


# name: (function of the lengths, the same for query i and key j)
INDEXES = {
    "t5": (
        posenc_ext.t5_relative_index,
        lambda i, j: oracle_relative.t5_bucket(j - i),
    ),
    "t5_causal": (
        lambda q, k: posenc_ext.t5_relative_index(q, k, bidirectional=False, num_buckets=20),
        lambda i, j: oracle_relative.t5_bucket(j - i, False, 20),
    ),
    "t5_odd": (
        lambda q, k: posenc_ext.t5_relative_index(q, k, num_buckets=13, max_distance=50),
        lambda i, j: oracle_relative.t5_bucket(j - i, True, 13, 50),
    ),
    "deberta": (
        lambda q, k: posenc_ext.deberta_relative_index(q, k, max_relative_positions=40),
        lambda i, j: min(max(i - j + 40, 0), 79),
    ),
    "deberta_buckets": (
        lambda q, k: posenc_ext.deberta_relative_index(
            q, k, position_buckets=16, max_relative_positions=128
        ),
        lambda i, j: min(max(oracle_relative.deberta_bucket(i - j, 16, 128) + 16, 0), 31),
    ),
    "clipped": (
        lambda q, k: posenc_ext.clipped_relative_index(q, k, left=6),
        lambda i, j: min(max(j - i, -6), 6) + 6,
    ),
    "clipped_asymmetric": (
        lambda q, k: posenc_ext.clipped_relative_index(q, k, left=64, right=8),
        lambda i, j: min(max(j - i, -64), 8) + 64,
    ),
    "bert": (
        lambda q, k: posenc_ext.bert_relative_index(q, k, max_position_embeddings=400),
        lambda i, j: i - j + 399,
    ),
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes(name):
    index_of, cell = INDEXES[name]
    for q_len, k_len in LENGTHS:
        index = index_of(q_len, k_len)
        assert (index.dtype, index.shape) == (torch.int64, (q_len + k_len - 1,))
        right = oracle_relative.positions(q_len, k_len, cell)
        np.testing.assert_array_equal(as_matrix(index, q_len, k_len), right)
        if q_len == k_len:
            assert torch.equal(index_of(q_len, None), index)
    assert index_of(0, 0).shape == (0,)
    assert index_of(0, 3).shape == (2,)
    assert index_of(3, 0).shape == (2,)


def test_golden(golden):
    for name in ("bidirectional", "causal"):
        case = golden[f"t5/buckets_{name}"]
        relative = torch.tensor(case["inputs"]["relative_position"])
        for given in (relative, relative.int().view(3, -1)):
            bucket = posenc_ext.t5_relative_position_bucket(given, name == "bidirectional")
            assert (bucket.dtype, bucket.shape) == (torch.int64, given.shape)
            assert bucket.flatten().tolist() == case["expected"]
    for name in ("bi_32_128", "causal_32_128", "bi_64_128", "bi_320_800"):
        case = golden[f"t5/thresholds_{name}"]
        bucket = posenc_ext.t5_relative_position_bucket(-torch.arange(2000), **case["inputs"])
        first = [int((bucket == b).nonzero()[0]) for b in range(int(bucket.max()) + 1)]
        assert first == case["expected"]
    for name in ("256_512", "8_32"):
        case = golden[f"deberta/log_bucket_{name}"]
        sizes = (case["inputs"]["bucket_size"], case["inputs"]["max_position"])
        delta = torch.tensor(case["inputs"]["rel"])
        bucket = posenc_ext.deberta_relative_position_bucket(delta, *sizes)
        assert bucket.tolist() == case["expected"]
    case = golden["shaw/index_L4_k2"]
    index = posenc_ext.clipped_relative_index(4, left=2)
    assert as_matrix(index, 4, 4).tolist() == case["expected"]


@pytest.mark.parametrize("rule", [(32, 128), (8, 20), (5, 1000), (320, 800), (64, 40)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_at_every_distance(rule, bidirectional):
    relative = torch.arange(-3000, 3001)
    right = [oracle_relative.t5_bucket(int(r), bidirectional, *rule) for r in relative]
    assert posenc_ext.t5_relative_position_bucket(relative, bidirectional, *rule).tolist() == right


@pytest.mark.parametrize("sizes", [(256, 512), (4, 6), (9, 33), (32, 1024)])
def test_deberta_buckets_at_every_distance(sizes):
    delta = torch.arange(-3000, 3001)
    right = [oracle_relative.deberta_bucket(int(d), *sizes) for d in delta]
    right = np.clip(right, -2 * sizes[0], 2 * sizes[0])
    assert posenc_ext.deberta_relative_position_bucket(delta, *sizes).tolist() == right.tolist()


def test_far_positions_and_limits():
    """Ends of buckets beyond 64 bits, and the one distance whose negative is not one."""
    far = torch.tensor([-(2**63), 1 - 2**63, 2**63 - 1])
    bucket = posenc_ext.t5_relative_position_bucket
    assert bucket(far).tolist() == [15, 15, 31]
    assert bucket(far, False).tolist() == [31, 31, 0]
    bucket = posenc_ext.deberta_relative_position_bucket
    assert bucket(far).tolist() == [-512, -512, 512]
    assert bucket(far, 256, 2**63 - 1).tolist() == [-256, -256, 256]
    # Bucket mid + m ends at the floor of mid * ((max - 1) / mid)^(m / (mid - 1)).
    near = torch.tensor([2, 3, 10**12, 10**12 + 1])
    assert bucket(near, 4, 10**12 + 1).tolist() == [2, 3, 3, 4]


def test_far_positions():
    far = torch.tensor([-(2**62), 2**62])
    assert posenc_ext.t5_relative_position_bucket(far).tolist() == [15, 31]
    assert posenc_ext.deberta_relative_position_bucket(far).tolist() == [-512, 512]


@pytest.mark.parametrize("name", INDEXES)
def test_compile_with_any_lengths(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    index_of = INDEXES[name][0]

    def of_shape(x):
        return index_of(*x.shape)

    compiled = torch.compile(of_shape, fullgraph=True, backend=counter)
    for length in (4, 5, 6, 9, 40):
        x = torch.zeros(length, 2 * length)
        assert torch.equal(compiled(x), of_shape(x))
    assert counter.frame_count <= 2


# fmt: off
REFUSALS = [
    ("t5_relative_position_bucket", TypeError, "relative_position", ([1],), {}),
    ("t5_relative_position_bucket", TypeError, "relative_position", (torch.ones(1),), {}),
    ("t5_relative_position_bucket", TypeError, "bidirectional", (torch.ones(1).int(), "no"), {}),
    ("t5_relative_position_bucket", ValueError, "num_buckets", (torch.ones(1).int(), True, 3), {}),
    ("t5_relative_position_bucket", ValueError, "max_distance",
        (torch.ones(1).int(), True, 32, 8), {}),
    ("deberta_relative_position_bucket", TypeError, "relative_position", (torch.ones(1),), {}),
    ("deberta_relative_position_bucket", ValueError, "bucket_size", (torch.ones(1).int(), 3), {}),
    ("deberta_relative_position_bucket", ValueError, "max_position",
        (torch.ones(1).int(), 256, 129), {}),
    ("t5_relative_index", ValueError, "q_len", (-1,), {}),
    ("t5_relative_index", TypeError, "q_len", (1.0,), {}),
    ("t5_relative_index", ValueError, "k_len", (1, -2), {}),
    ("t5_relative_index", ValueError, "num_buckets", (1,),
        {"num_buckets": 1, "bidirectional": False}),
    ("t5_relative_index", ValueError, "max_distance", (1,), {"max_distance": 8}),
    ("deberta_relative_index", ValueError, "max_relative_positions", (1,),
        {"max_relative_positions": 0}),
    ("deberta_relative_index", ValueError, "max_relative_positions", (1,),
        {"position_buckets": 256, "max_relative_positions": 100}),
    ("deberta_relative_index", ValueError, "position_buckets", (1,), {"position_buckets": 2}),
    ("deberta_relative_index", TypeError, "k_len", (1, "2"), {}),
    ("clipped_relative_index", ValueError, "left", (1,), {"left": -1}),
    ("clipped_relative_index", ValueError, "right", (1,), {"left": 1, "right": -1}),
    ("bert_relative_index", ValueError, "k_len", (1, 9), {"max_position_embeddings": 8}),
    ("bert_relative_index", ValueError, "q_len", (9,), {"max_position_embeddings": 8}),
    ("bert_relative_index", ValueError, "max_position_embeddings", (1,),
        {"max_position_embeddings": 0}),
    # Beyond what can be counted, or computed in a few seconds.
    ("t5_relative_index", ValueError, "q_len and k_len together", (2**62,), {}),
    ("t5_relative_position_bucket", ValueError, "num_buckets",
        (torch.ones(1).int(), True, 2**62, 2**62), {}),
    ("deberta_relative_position_bucket", ValueError, "bucket_size",
        (torch.ones(1).int(), 2**62, 2**62), {}),
    ("deberta_relative_index", ValueError, "position_buckets", (1,),
        {"position_buckets": 2**62, "max_relative_positions": 2**62}),
    ("rel_shift", ValueError, "k_len", (torch.ones(1, 1), 2**62), {"start": 2**62}),
]
# fmt: on


@pytest.mark.parametrize(("op", "exception", "argument", "args", "options"), REFUSALS)
def test_refusals(op, exception, argument, args, options):
    with pytest.raises(exception, match=rf"^posenc_ext\.{op}: {argument} must .+, got .+") as e:
        getattr(posenc_ext, op)(*args, **options)
    assert type(e.value) is exception


def test_a_longer_input_than_bert_has_rows_for_is_refused_by_both_numbers():
    with pytest.raises(ValueError, match=re.escape("max_position_embeddings = 8, got 9")):
        posenc_ext.bert_relative_index(1, 9, max_position_embeddings=8)


@pytest.mark.parametrize("offset", [0, 1, 4, 9, -2])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t5_relative_index", {"num_buckets": 8, "max_distance": 16}),
        ("deberta_relative_index", {"max_relative_positions": 6}),
        ("clipped_relative_index", {"left": 3, "right": 2}),
        ("bert_relative_index", {"max_position_embeddings": 30}),
    ],
)
def test_queries_that_are_not_the_last_of_the_keys(name, options, offset):
    """The rows of a longer sequence, of which the queries are some: each cell by its distance."""
    function, q_len, k_len = getattr(posenc_ext, name), 3, 12
    index = function(q_len, k_len, offset=offset, **options)
    columns = torch.arange(1000.0).expand(1, q_len, 1000)
    cells = posenc_ext.relative_gather(columns, index, k_len)[0]
    for i in range(q_len):
        for j in range(k_len):
            # One query and one key, as far apart.
            distance = j - i - offset
            one = function(1, 1, offset=-distance, **options)
            assert cells[i, j] == one[0]
    default = function(q_len, k_len, **options)
    assert torch.equal(function(q_len, k_len, offset=k_len - q_len, **options), default)


def test_a_t5_bias_in_a_cache_that_is_not_full():
    bias = posenc_ext.T5RelativePositionBias(4, bidirectional=False)
    whole = bias(20, 20)
    assert torch.equal(bias(2, 20, offset=7), whole[:, :, 7:9])
