"""The picture of docs/speed.md, drawn from its table: python docs/speed_picture.py"""

import pathlib
import re
from html import escape

HERE = pathlib.Path(__file__).parent
PICTURE = HERE / "img" / "speed.svg"
ROWS = {  # what stands in the first column: what the picture says
    "`apply_rope`, new tensors / in place, float32": "apply_rope, new tensors, beside eager torch",
    "forward and backward, float32 / bfloat16": "forward and backward, beside eager autograd",
    "decode: q and k of one token, one call": "decode, one token, beside eager torch",
    "`rope`, new tensor, float32 / bfloat16": "rope, new tensor, beside x.clone()",
    "`add_sinusoidal`, (4, 2048, 4096) float32": "add_sinusoidal, beside x.clone()",
    "`alibi_softmax`, float32 / bfloat16": "alibi_softmax, beside torch.softmax",
}
WIDTH, LEFT, BAR, STEP = 815, 350, 8, 38


def ratios():
    """Label: the first ratio of its row, and whether that says how much faster we are."""
    table = {}
    for line in (HERE / "speed.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] in ROWS:
            table[ROWS[cells[0]]] = (float(re.match(r"[\d.]+", cells[3])[0]), "faster" in cells[3])
    return [(label, *table[label]) for label in ROWS.values()]


def svg():
    rows = ratios()
    height = STEP * len(rows) + 44
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    longest = WIDTH - LEFT - 120
    for i, (label, ratio, faster) in enumerate(rows):
        y = 16 + STEP * i
        share = 1 / ratio if faster else ratio
        text = f"{ratio:g}x faster" if faster else f"{ratio:g}x its time"
        lines += [
            f'<text x="{LEFT - 12}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{longest * share:.1f}" height="{BAR}" '
            'fill="#3f51b5"/>',
            f'<rect x="{LEFT}" y="{y + BAR + 2}" width="{longest}" height="{BAR}" fill="#b0b4bd"/>',
            f'<text x="{WIDTH - 108}" y="{y + 13}" fill="#222">{text}</text>',
        ]
    y = height - 14
    lines += [
        f'<rect x="{LEFT}" y="{y - 9}" width="12" height="{BAR}" fill="#3f51b5"/>',
        f'<text x="{LEFT + 18}" y="{y}">posenc_ext</text>',
        f'<rect x="{LEFT + 120}" y="{y - 9}" width="12" height="{BAR}" fill="#b0b4bd"/>',
        f'<text x="{LEFT + 138}" y="{y}">beside: time, shorter is better</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
