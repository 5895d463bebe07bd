"""Tables as HTML and as Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence

Row = Sequence[object]


def html_table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table as HTML, with line breaks allowed after a folder's name."""

    def line(values: Row, tag: str) -> str:
        texts = [html.escape(str(value)).replace("/", "/<wbr>") for value in values]
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    lines = [line(head, "th"), *(line(row, "td") for row in rows)]
    return f'<div class="table"><table>{"".join(lines)}</table></div>'


def markdown_table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table as Markdown."""

    def line(values: Row) -> str:
        return "| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |"

    return "\n".join(map(line, [head, ["---"] * len(head), *rows]))
