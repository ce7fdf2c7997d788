"""The page of report.html as a jinja2 template. A Python string, so that it is always packaged."""

from __future__ import annotations

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} – simlora</title>
<style>
:root { --ink: #1d232b; --dim: #66707c; --page: #fbfbfa; --card: #fff; --grid: #dfe2e6; --good: #2e7d32; --bad: #c62828;
  --warn: #9a6200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --dim: #98a2ae; --page: #14171b; --card: #1c2026;
  --grid: #363c45; --good: #7bc67e; --bad: #ff7b72; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 3rem; max-width: 62rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: .2rem 0 1.2rem; }
h1.good { color: var(--good); } h1.bad { color: var(--bad); }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: .9rem; margin: 0 0 .4rem; }
.dim, footer { color: var(--dim); } .warn { color: var(--warn); } p { margin: .4rem 0; }
.cards, .columns { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); }
.columns { grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.35rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 600; text-align: right; } td { text-align: right; }
th:first-child, td:first-child { text-align: left; }
th, td { padding: .22rem .5rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
tr.detail td { color: var(--dim); } tr.detail td:first-child { padding-left: 1.6rem; }
td.refused { color: var(--dim); text-align: left; white-space: normal; }
.scroll { overflow-x: auto; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem .8rem; margin: 0; font-size: .9rem; }
dt { color: var(--dim); } dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1.6rem; border-radius: 5px; overflow: hidden; margin-bottom: .7rem; }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: .1rem 1.5rem;
  font-size: .9rem; list-style: none; padding: 0; margin: 0; }
.legend li { display: flex; gap: .5rem; align-items: baseline; } .legend span { flex: 1; }
.legend i { width: .75rem; height: .75rem; border-radius: 2px; flex: none; }
.notice { border-left: 3px solid var(--warn); padding: .1rem .9rem; margin: 1rem 0; }
svg { width: 100%; height: auto; display: block; margin-top: 1rem; }
svg text { font-family: inherit !important; }
footer { margin-top: 2.5rem; font-size: .85rem; }
</style>
</head>
<body>
<p class="dim">{{ title }}</p>
<h1 class="{{ verdict_class }}">{{ verdict }}</h1>
<div class="cards">
{% for fact in figures %}
<div class="card"><span class="dim">{{ fact.label }}</span><b>{{ fact.text }}</b></div>
{% endfor %}
</div>

{% if extrapolated or censored or notes or thrashing %}
<div class="notice">
{% if extrapolated %}
<p><strong class="warn">Extrapolated</strong> outside the measured range:
{% for fact in extrapolated %}{{ fact.label }} ({{ fact.text }}){{ ", " if not loop.last }}{% endfor %}.</p>
{% endif %}
{% if censored %}<p><strong class="warn">Censored</strong> {{ censored }}.</p>{% endif %}
{% for note in notes %}
<p>{{ note }}</p>
{% endfor %}
</div>
{% endif %}

{% if recommendation %}
<h2>What to change</h2>
<p><strong>{{ recommendation }}.</strong> Tried on {{ sampled }} of the requests:</p>
<div class="scroll"><table>
<tr><th>change</th><th>TTFT mean ms</th><th>TPOT mean ms</th><th>in SLO</th><th>tokens/s out</th>
<th>KV tokens</th><th>per hour</th></tr>
{% for label, cells, refused in tried %}
<tr><td>{{ label }}</td>{% for cell in cells %}<td>{{ cell }}</td>{% else %}<td class="refused" colspan="6">
impossible: {{ refused }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}

<h2>Latency (ms)</h2>
<div class="scroll"><table>
<tr><th></th>{% for name in statistics %}<th>{{ name }}</th>{% endfor %}</tr>
{% for label, detail, cells in latencies %}
<tr{% if detail %} class="detail"{% endif %}><td>{{ label }}</td>
{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{{ cdf | safe }}

<h2>Where request time goes</h2>
{% if shares %}
<div class="bar">
{% for colour, label, share in shares %}
<div style="background:{{ colour }};width:{{ "%.3f" | format(share * 100) }}%"
 title="{{ label }} {{ percent(share) }}"></div>
{% endfor %}
</div>
<ul class="legend">
{% for colour, label, share in shares %}
<li><i style="background:{{ colour }}"></i><span>{{ label }}</span>{{ percent(share) }}</li>
{% endfor %}
</ul>
<p class="dim">Request-seconds from arrival to last token.
Thrashing means {{ rule }}: {{ "yes" if thrashing else "no" }}.</p>
{% else %}<p class="dim">No request spent any time.</p>{% endif %}

<h2>Over time</h2>
{{ timeline | safe }}

<h2>Details</h2>
<div class="columns">
{% for name, rows in columns.items() %}
<div class="card"><h3>{{ name }}</h3><dl>
{% for fact in rows %}
<dt>{{ fact.label }}</dt><dd{% if fact.warn %} class="warn"{% endif %}>{{ fact.text }}</dd>
{% endfor %}
</dl></div>
{% endfor %}
</div>

{% if ledger %}
<h2>Memory of one GPU</h2>
<div class="scroll"><table>
<tr><th></th><th>GB</th><th>share</th><th></th></tr>
{% for label, size, share, note in ledger %}
<tr><td>{{ label }}</td><td>{{ size }}</td><td>{{ share }}</td><td>{{ note }}</td></tr>
{% endfor %}
</table></div>
<p class="dim">{{ binding }}.</p>
{% endif %}

<h2>Tenants served worst</h2>
<p class="dim">{{ num_tenants }} tenants, Jain index {{ jain }} of the share of time in service.
Requests by rank: {% for rank, share in ranks %}{{ rank }}: {{ share }}{{ ", " if not loop.last }}{% endfor %}.</p>
<div class="scroll"><table>
<tr><th>tenant</th><th>rank</th><th>requests</th><th>completed</th><th>in SLO</th><th>TTFT p50 ms</th>
<th>TTFT p99 ms</th><th>TPOT ms</th><th>slowdown</th></tr>
{% for cells in tenants %}
<tr>{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>

<h2>Replicas</h2>
<div class="scroll"><table>
<tr><th>replica</th><th>requests</th><th>completed</th><th>running</th><th>waiting</th><th>GPU busy</th><th>KV mean</th>
<th>KV max</th><th>slot hits</th><th>loads</th><th>preempted</th></tr>
{% for cells in replicas %}
<tr>{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% if hidden_replicas %}<p class="dim">and {{ hidden_replicas }} more</p>{% endif %}

<footer>simlora {{ version }} · calibration {{ calibration.id }}{% if calibration.sha256 %}
 · {{ calibration.sha256[:12] }}{% endif %} · TPOT is one value per request, ITL pools every gap between
tokens.</footer>
</body>
</html>
"""
