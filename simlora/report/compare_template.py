"""The page of comparison.html as a jinja2 template."""

from __future__ import annotations

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}: engines compared – simlora</title>
<style>
:root { --ink: #1d232b; --dim: #66707c; --page: #fbfbfa; --grid: #dfe2e6; --bar: #4c78a8; --bad: #c62828;
  --warn: #9a6200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --dim: #98a2ae; --page: #14171b; --grid: #363c45;
  --bar: #6f9fce; --bad: #ff7b72; --warn: #e3b341; } }
body { margin: 0 auto; padding: 2rem 1.5rem 3rem; max-width: 74rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .2rem; } ul { margin: 0; padding-left: 1.2rem; }
.dim { color: var(--dim); } .bad, .bad td:nth-child(2) { color: var(--bad); }
tr.bad { color: var(--dim); } .warn { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--grid); white-space: nowrap; text-align: right; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
.bars { display: grid; grid-template-columns: auto 1fr auto; gap: .3rem .8rem; align-items: center; }
.bars i { display: block; height: 1.1rem; min-width: 2px; border-radius: 3px; background: var(--bar); }
</style>
</head>
<body>
<p class="dim">{{ title }}</p>
<h1>{{ verdict[:1] | upper }}{{ verdict[1:] }}.</h1>
<div class="scroll"><table>
<thead><tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for meets, row in rows %}
<tr{% if not meets %} class="bad"{% endif %}>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if extrapolated %}<p class="warn">{{ extrapolated }}</p>{% endif %}
{% if bars %}
<h2>Dollars a month</h2>
<div class="bars">
{% for engine, usd, length in bars %}
<span>{{ engine }}</span><i style="width: {{ '%.2f' | format(length) }}%"></i><span>{{ usd }}</span>
{% endfor %}
</div>
{% endif %}
<h2>Why</h2>
{% for item in played %}
<h3>{{ item.engine }}</h3>
<ul>{% for reason in item.reasons %}<li>{{ reason }}</li>{% endfor %}</ul>
{% endfor %}
{% for engine, reason in unsupported.items() %}
<h3>{{ engine }} <span class="bad">cannot serve this</span></h3>
<p>{{ reason }}</p>
{% endfor %}
</body>
</html>
"""
