"""Draws what storage types of K and V cost: perplexity, right answers and bytes, from reports of `kvcache bench accuracy --json`.

    for type in fp32 bf16 int8; do kvcache bench accuracy --kv-dtype $type --json >$type.json; done
    python3 docs/accuracy_picture.py docs/accuracy.svg fp32.json bf16.json int8.json

Arguments: the picture; reports, of which the first is what the others are compared with.
"""

import html
import json
import pathlib
import sys

ROW, TOP, WIDTH = 34, 64, 760
NAME, BYTES, LOSS, RIGHT = 24, 120, 390, 736  # Where columns begin; the last one ends there.
BAR = 180  # Of the longest.

STYLE = """text { font: 14px system-ui, sans-serif; fill: #1f2328 } .head { font-weight: 600 } .note { font-size: 12px; fill: #656d76 }
.bytes { fill: #8250df } .loss { fill: #e8743b } .axis { stroke: #d0d7de }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .note { fill: #8b949e } .axis { stroke: #30363d } .bytes { fill: #a371f7 } }"""


def bar(kind, x, y, part, label):
    width = max(1.5, BAR * part)
    return (f'<rect class="{kind}" x="{x}" y="{y - 13}" width="{width:.1f}" height="17" rx="3"/>'
            f'<text x="{x + width + 8:.1f}" y="{y}">{html.escape(label)}</text>')


def picture(reports):
    first = reports[0]
    losses = [100 * (report["perplexity"] / first["perplexity"] - 1) for report in reports]
    most_bytes, most_loss = max(report["bytes_per_token"] for report in reports), max(max(losses), 0.1)
    height = TOP + ROW * len(reports) + 34
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
             "<title>What storage types of K and V cost</title>", f"<style>{STYLE}</style>",
             f'<text class="head" x="{NAME}" y="30">K and V</text>', f'<text class="head" x="{BYTES}" y="30">bytes per token</text>',
             f'<text class="head" x="{LOSS}" y="30">perplexity</text>',
             f'<text class="head" x="{RIGHT}" y="30" text-anchor="end">right of {first["questions"]}</text>',
             f'<path class="axis" d="M{NAME} 42H{RIGHT}"/>']
    for number, (report, loss) in enumerate(zip(reports, losses)):
        y = TOP + 4 + ROW * number
        # Adding 0 turns -0.0 into 0.0.
        label = f"{report['perplexity']:.2f}" + ("" if report is first else f" ({round(loss, 1) + 0:+.1f} %)")
        parts += [f'<text x="{NAME}" y="{y}">{html.escape(report["kv_dtype"])}</text>',
                  bar("bytes", BYTES, y, report["bytes_per_token"] / most_bytes, f"{report['bytes_per_token']:,}"),
                  bar("loss", LOSS, y, max(0, loss) / most_loss, label),
                  f'<text x="{RIGHT}" y="{y}" text-anchor="end">{report["right"]}</text>']
    about = f"{first['model']}, {first['text']} of {first['tokens']} tokens; bars of perplexity: beyond {first['kv_dtype']}"
    parts.append(f'<text class="note" x="{NAME}" y="{height - 14}">{html.escape(about)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    target, *paths = sys.argv[1:]
    pathlib.Path(target).write_text(picture([json.loads(pathlib.Path(path).read_text()) for path in paths]))


if __name__ == "__main__":
    main()
