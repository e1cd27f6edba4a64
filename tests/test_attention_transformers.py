"""The attention modules against those of transformers, with the same parameters."""

import importlib

import pytest
import torch
from attention_cases import BATCH, D_MODEL, HEADS, LENGTH, same
from rope_cases import uniform

import posenc_ext

try:
    import transformers
    from packaging.version import Version
except ImportError:
    REASON = "transformers is not installed"
else:
    REASON = ""
    if Version(transformers.__version__) < Version("5"):
        REASON = f"transformers is {transformers.__version__}, the test is written for 5"

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "ready")
F64 = torch.float64
SIZES = {"hidden_size": D_MODEL, "num_attention_heads": HEADS, "num_hidden_layers": 1}


def modeling(family):
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def made(module):
    """In float64, with parameters that are not zero."""
    torch.manual_seed(5)
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.uniform_(-0.5, 0.5)
    return module


def inputs(length=LENGTH, seed=0):
    return uniform((BATCH, length, D_MODEL), F64, seed)


def padding():
    columns = torch.arange(LENGTH)
    return torch.stack([columns < LENGTH, columns < LENGTH - 2])


def both_gradients(ours, theirs, x, tolerance=1e-10):
    """Of x and of every parameter; (module, output) each."""
    upstream = uniform((BATCH, LENGTH, D_MODEL), F64, 9)
    mine = dict(ours[0].named_parameters())
    right = dict(theirs[0].named_parameters())
    wanted = [right[name] for name in mine]
    a = torch.autograd.grad(ours[1], (x, *mine.values()), upstream)
    b = torch.autograd.grad(theirs[1], (x, *wanted), upstream)
    for one, two in zip(a, b, strict=True):
        same(one, two, tolerance)


@pytest.mark.parametrize("length", [LENGTH, 1])
def test_wav2vec2_bert_relative_key(length):
    keys = {"left_max_position_embeddings": 5, "right_max_position_embeddings": 2}
    config = transformers.Wav2Vec2BertConfig(
        position_embeddings_type="relative_key", **SIZES, **keys
    )
    config._attn_implementation = "eager"
    theirs = made(modeling("wav2vec2_bert").Wav2Vec2BertSelfAttention(config))
    ours = posenc_ext.RelativeSelfAttention(D_MODEL, HEADS, 5, 2, values=False, dtype=F64)
    ours.load_state_dict(theirs.state_dict())
    x = inputs(length).requires_grad_()
    y, weights = ours(x, need_weights=True)
    right, right_weights = theirs(x)
    same(y, right)
    same(weights, right_weights)
    if length == LENGTH:
        both_gradients((ours, y), (theirs, right), x)


def test_wav2vec2_conformer():
    """Their table is float32: the distances agree to its rounding."""
    config = transformers.Wav2Vec2ConformerConfig(position_embeddings_type="relative", **SIZES)
    config._attn_implementation = "eager"
    family = modeling("wav2vec2_conformer")
    theirs = made(family.Wav2Vec2ConformerSelfAttention(config))
    x = inputs()
    table = family.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    options = {"causal": False, "bias": True, "convention": "interleaved"}
    ours = posenc_ext.TransformerXLAttention(D_MODEL, HEADS, dtype=F64, **options)
    ours.load_state_dict(theirs.state_dict())
    mask = torch.zeros(BATCH, 1, 1, LENGTH, dtype=F64)
    mask = mask.masked_fill(~padding()[:, None, None], torch.finfo(F64).min)
    right, right_weights = theirs(x, attention_mask=mask, relative_position_embeddings=table)
    y, weights = ours(x, key_padding_mask=padding(), need_weights=True)
    same(weights, right_weights, 1e-6)
    same(y, right, 1e-6)


@pytest.mark.parametrize("clamp_len", [None, 3])
@pytest.mark.parametrize("memory", [0, 4])
def test_xlnet(memory, clamp_len):
    """The attention without its residual and LayerNorm; no segment ids."""
    config = transformers.XLNetConfig(
        d_model=D_MODEL, n_head=HEADS, n_layer=1, d_inner=8, vocab_size=8, clamp_len=clamp_len or -1
    )
    model = transformers.XLNetModel(config)
    theirs = made(model.layer[0].rel_attn)
    names = {
        "linear_q": "q",
        "linear_k": "k",
        "linear_v": "v",
        "linear_pos": "r",
        "linear_out": "o",
    }
    state = {f"{ours}.weight": getattr(theirs, t).flatten(1).T for ours, t in names.items()}
    state["linear_out.weight"] = theirs.o.flatten(1)
    state |= {"pos_bias_u": theirs.r_w_bias, "pos_bias_v": theirs.r_r_bias}
    ours = posenc_ext.TransformerXLAttention(
        D_MODEL, HEADS, causal=False, clamp_len=clamp_len, dtype=F64
    )
    ours.load_state_dict(state)
    x, before = inputs(), inputs(memory, 1)
    every = torch.cat([before, x], 1).transpose(0, 1)
    r = model.relative_positional_encoding(LENGTH, LENGTH + memory, bsz=BATCH).double()
    q, k, v = (
        torch.einsum("ibh,hnd->ibnd", t, p)
        for t, p in ((x.transpose(0, 1), theirs.q), (every, theirs.k), (every, theirs.v))
    )
    core = theirs.rel_attn_core(q, k, v, torch.einsum("ibh,hnd->ibnd", r, theirs.r))
    right = theirs.post_attention(torch.zeros(1), core, residual=False)
    y = ours(x, memory=before)
    y = torch.nn.functional.layer_norm(
        y, (D_MODEL,), theirs.layer_norm.weight, theirs.layer_norm.bias, theirs.layer_norm.eps
    )
    same(y, right.transpose(0, 1), 2e-6)  # their sinusoids are float32


@pytest.mark.parametrize("terms", [["c2p", "p2c"], ["c2p"], ["p2c"]], ids="|".join)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("buckets", [-1, 4], ids=["plain", "buckets"])
def test_deberta_v2(buckets, share, terms):
    """Also beyond the longest distance."""
    config = transformers.DebertaV2Config(
        relative_attention=True, position_buckets=buckets, share_att_key=share, pos_att_type=terms,
        max_relative_positions=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **SIZES,
    )  # fmt: skip
    theirs = made(modeling("deberta_v2").DisentangledSelfAttention(config))
    ours = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, 6, position_buckets=None if buckets < 0 else buckets, terms=terms,
        share_att_key=share, shared_table=True, out_proj=False, dtype=F64,
    )  # fmt: skip
    ours.load_state_dict(theirs.state_dict())
    table = uniform((2 * theirs.pos_ebd_size, D_MODEL), F64, 4)
    x, real = inputs().requires_grad_(), padding()
    right, right_weights = theirs(
        x, real[:, None, None].expand(-1, -1, LENGTH, -1), output_attentions=True,
        rel_embeddings=table,
    )  # fmt: skip
    y, weights = ours(x, rel_embeddings=table, key_padding_mask=real, need_weights=True)
    # Their scale is the square root of a float32.
    same(weights, right_weights, 1e-6)
    same(y, right, 1e-5)


@pytest.mark.parametrize("longest", [6, 20])
def test_deberta_v1(longest):
    """Its parameters are translated; its span, a part of the table, gives the same rows."""
    config = transformers.DebertaConfig(
        relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=longest,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SIZES,
    )  # fmt: skip
    theirs = made(modeling("deberta").DisentangledSelfAttention(config))
    ours = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, longest, shared_table=True, out_proj=False, dtype=F64
    )
    ours.load_state_dict(theirs.state_dict())
    table = uniform((2 * longest, D_MODEL), F64, 4)
    x, real = inputs(), padding()
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    right, right_weights = theirs(
        x, real[:, None, None].expand(-1, -1, LENGTH, -1), output_attentions=True,
        rel_embeddings=table, relative_pos=distance[None],
    )  # fmt: skip
    y, weights = ours(x, rel_embeddings=table, key_padding_mask=real, need_weights=True)
    same(weights, right_weights, 1e-6)
    same(y, right, 1e-5)


def test_deberta_v2_model():
    """Through the encoder: its table with a LayerNorm, shared by the layers."""
    config = transformers.DebertaV2Config(
        relative_attention=True, position_buckets=4, share_att_key=True, pos_att_type="p2c|c2p",
        max_relative_positions=6, norm_rel_ebd="layer_norm", vocab_size=9, intermediate_size=8,
        max_position_embeddings=32, **SIZES,
    )  # fmt: skip
    encoder = made(transformers.DebertaV2Model(config)).encoder
    theirs = encoder.layer[0].attention
    ours = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, 6, position_buckets=4, share_att_key=True, norm_rel_ebd=True, dtype=F64
    )
    state = {**theirs.self.state_dict(), "rel_embeddings.weight": encoder.rel_embeddings.weight}
    state |= {f"LayerNorm.{k}": v for k, v in encoder.LayerNorm.state_dict().items()}
    state |= {f"out.{k}": v for k, v in theirs.output.dense.state_dict().items()}
    ours.load_state_dict(state)
    x, real = inputs(), torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    right = theirs(x, real, rel_embeddings=encoder.get_rel_embedding())[0]
    same(theirs.output.LayerNorm(ours(x) + x), right, 1e-5)


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_llama(kv_heads):
    config = transformers.LlamaConfig(
        num_key_value_heads=kv_heads, intermediate_size=8, vocab_size=9, **SIZES
    )
    config._attn_implementation = "eager"
    family = modeling("llama")
    theirs = made(family.LlamaAttention(config, 0))
    rotary = posenc_ext.RotaryPositionalEmbedding.from_config(config)
    ours = posenc_ext.RotaryAttention(D_MODEL, HEADS, kv_heads, rotary=rotary, dtype=F64)
    ours.load_state_dict(theirs.state_dict())
    x = inputs().requires_grad_()
    tables = (t.repeat(1, 2)[None] for t in rotary.table(LENGTH, dtype=F64))
    mask = torch.full((LENGTH, LENGTH), torch.finfo(F64).min, dtype=F64).triu(1)[None, None]
    right, right_weights = theirs(x, tuple(tables), mask)
    y, weights = ours(x, need_weights=True)
    same(weights, right_weights, 1e-6)  # their softmax is float32
    same(y, right, 1e-6)
    both_gradients((ours, ours(x)), (theirs, right), x, 1e-5)


def test_roformer_rotates_values():
    """Its attention, with `rotary_value`; no output projection of its own."""
    config = transformers.RoFormerConfig(
        rotary_value=True, intermediate_size=8, embedding_size=D_MODEL, **SIZES
    )
    theirs = made(modeling("roformer").RoFormerSelfAttention(config))
    rotary = posenc_ext.RotaryPositionalEmbedding(D_MODEL // HEADS, interleaved=True)
    ours = posenc_ext.RotaryAttention(
        D_MODEL, HEADS, rotary=rotary, rotate_values=True, causal=False, bias=True, dtype=F64
    )
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
    state = {
        f"{mine}.{part}": getattr(getattr(theirs, other), part)
        for mine, other in names.items()
        for part in ("weight", "bias")
    }
    eye = {"o_proj.weight": torch.eye(D_MODEL, dtype=F64), "o_proj.bias": torch.zeros(D_MODEL)}
    ours.load_state_dict(state | eye)
    cos, sin = rotary.table(LENGTH, dtype=F64)
    right = theirs(inputs(), sinusoidal_pos=torch.cat([sin, cos], -1)[None, None])[0]
    same(ours(inputs()), right)
