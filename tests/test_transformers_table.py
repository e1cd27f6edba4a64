"""A sample of the table of docs/compat/transformers.md, run again; the command makes all of it."""

import hf_models
import pytest
import torch

pytestmark = [
    pytest.mark.skipif(bool(hf_models.REASON), reason=hf_models.REASON or "ready"),
    pytest.mark.filterwarnings("ignore"),  # what transformers does to itself
]

SAMPLE = ["bloom", "clvp", "cohere", "deepseek_v2", "deepseek_v4", "dinov3_vit", "gptj", "jamba",
          "llama", "llama4_text", "qwen2_vl"]  # fmt: skip


@pytest.mark.parametrize("model_type", SAMPLE)
def test_row(model_type):
    from transformers_table import PAGE, quiet, render

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = quiet(model_type)
    torch.set_num_threads(threads)
    (row,) = render({model_type: outcome}).splitlines()[2:]
    what, how = row.split(" | ")[:2]
    (there,) = [line for line in PAGE.read_text().splitlines()
                if f"`{model_type}`" in line and line.startswith("|")]  # fmt: skip
    assert there.split(" | ")[:2] == [what, how]
