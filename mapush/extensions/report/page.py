"""Page for ``mapush report``: HTML with all pictures inside."""

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from mapush.extensions.report.run_logs import Group, RunLog, differences
from mqe.manifest import read_json
from mqe.tasks.episode_report import interval_key, with_interval

# The calculator's metrics in a run folder, as ``make train`` names the file.
EVALUATION = "evaluation.json"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;"
    "color:#222}"
    "img{max-width:100%}"
    "figure{margin:1em 0}"
    "figcaption,p{max-width:75ch}"
    "figcaption{color:#555}"
    ".table{overflow-x:auto}"
    "table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ddd;padding:.25em .8em;text-align:left;vertical-align:top;"
    "overflow-wrap:break-word}"
    "h2{margin-top:2em}"
    "@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}}"
)
_BANDS = "Lines are interquartile means over runs, bands their 95 % bootstrap intervals."
_SHARE = "share (95 % interval)"


def page(groups: Sequence[Group], pictures: Mapping[str, bytes]) -> str:
    """Return the page. ``pictures`` are PNG files by title."""
    logs = [log for group in groups for log in group.runs]
    parts = ["<h1>Runs</h1>", _runs_table(groups), *_measured(logs)]
    parts += ["<h2>Settings that differ</h2>", _differences_table(logs)]
    has_bands = any(len(group.runs) > 1 for group in groups)
    for title, png in pictures.items():
        parts += [f"<h2>{title}</h2>", _picture(png, title, _BANDS if has_bands else "")]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>mapush: report</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'


def _html_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML, with line breaks allowed after a folder's name."""

    def line(values: Sequence[object], tag: str) -> str:
        texts = [html.escape(str(value)).replace("/", "/<wbr>") for value in values]
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    lines = [line(head, "th"), *(line(row, "td") for row in rows)]
    return f'<div class="table"><table>{"".join(lines)}</table></div>'


def _picture(png: bytes, title: str, note: str) -> str:
    caption = f"<figcaption>{html.escape(note)}</figcaption>" if note else ""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    image = f'<img alt="{html.escape(title)}" src="{source}">'
    return f"<figure>{image}{caption}</figure>"


def _runs_table(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        for log in group.runs:
            longest = max(log.curves.values(), key=lambda curve: curve.env_steps[-1])
            success = log.last("mapush/success_rate")
            row = [
                log.folder,
                group.name,
                log.settings.get("task.object", "-"),
                log.settings.get("runner.seed"),
                f"{longest.env_steps[-1]:,.0f}",
                f"{longest.seconds[-1] / 60.0:.1f}",
                "-" if success is None else f"{success:.3f}",
            ]
            rows.append(row)
    heads = ["run", "curve", "object", "seed", "env steps", "minutes", "success rate at the end"]
    return _html_table(heads, rows)


def _measured(logs: Sequence[RunLog]) -> list[str]:
    """Return the rates in the runs' ``evaluation.json`` as a table."""
    rows = []
    for log in logs:
        metrics = read_json(log.folder / EVALUATION)
        rows += _rates(str(log.folder), metrics)
        scripts = metrics.get("baselines")
        if isinstance(scripts, dict):
            for name, measured in scripts.items():
                rows += _rates(f"{name}, on the starts of {log.folder}", measured)
    if not rows:
        return []
    table = _html_table(["run", "rate", _SHARE, "episodes"], rows)
    return ["<h2>Measured by the calculator</h2>", table]


def _rates(team: str, metrics: Any) -> list[list[object]]:
    """Return a row for each rate among a team's metrics."""
    if not isinstance(metrics, dict):
        return []
    rows = []
    for name in metrics:
        if interval_key(name) in metrics:
            words = name.removesuffix("_rate").replace("_", " ")
            rows.append([team, words, with_interval(metrics, name), metrics.get("num_episodes")])
    return rows


def _differences_table(logs: Sequence[RunLog]) -> str:
    """Return a row for each value of a setting, with its runs."""
    different = differences(logs)
    if not different:
        words = "Only seeds differ." if len(logs) > 1 else "There is one run."
        return f"<p>{words}</p>"
    rows = []
    for key, values in different.items():
        runs_by_value: dict[str, list[str]] = {}
        for log, value in zip(logs, values, strict=True):
            runs_by_value.setdefault(str(value), []).append(str(log.folder))
        rows += [[key, value, ", ".join(runs)] for value, runs in runs_by_value.items()]
    return _html_table(["setting", "value", "runs"], rows)
