#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/performance.md, and the table in README.md, from the results beside this file; --check says whether they are current.

    bench/results/page.py            # write them
    bench/results/page.py --check    # exit status 1 if they are not what the results give

Of each machine and section the newest file counts. Known shortfalls, which no figure tells by itself, are in shortfalls.json.
"""
import json
import pathlib
import re
import sys

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
PAGE, README = root / 'docs/performance.md', root / 'README.md'
# README's table: a line, its section, and the workloads whose figures stand in one cell.
SUMMARY = [
    ('forward, 2,048 keys, D128', 'forward', 'd128_2k_dense', 'd128_2k_causal'),
    ('forward, 8,192, D64', 'forward', 'd64_8k_dense', 'd64_8k_causal'),
    ('forward, 16,384, D128, soft-cap 50', 'forward', 'softcap_dense', 'softcap_causal'),
    ('forward, 16,384, D128, causal documents', 'forward', 'document_causal'),
    ('backward, 2,048, D128', 'backward', 'd128_2k_dense', 'd128_2k_causal'),
    ('backward, 8,192, D256', 'backward', 'd256_8k_dense', 'd256_8k_causal'),
]
BEGIN, END = '<!-- figures: bench/results/page.py -->\n', '<!-- end of figures -->\n'
UNITS = {'TFLOP/s': ('flop_per_second', 1e12), 'GFLOP/s': ('flop_per_second', 1e9), 'TB/s': ('bytes_per_second', 1e12),
         'ms': ('median_seconds', 1e-3), 'us': ('median_seconds', 1e-6)}
PEERS = {'torch-cudnn': 'cuDNN', 'torch-flex': 'flex_attention', 'torch-flash': 'flash-2', 'torch-sdpa': 'scaled_dot_product_attention', 'torch-fa4': 'FlashAttention-4'}
IN_README = ['torch-cudnn', 'torch-flex', 'torch-flash']

HEAD = '''# Performance

This page is generated from `bench/results/*.json` by `bench/results/page.py`; a test compares it with them. Each section has its date, its device and
its command, and ends with the known shortfalls: where attune is slower than others or than its goal, and which figures are of an earlier kernel. Inputs are
random, clocks are not locked, and a peer runs beside attune in the same run.

- **Shape**: `b` batch, `h` query heads`:`key and value heads, `q` queries, `k` keys, `d` head dimension; in serving `s` sequences and `t` rows.
- **Plan**: the kernel family and its tile, rows x keys; in backward the tiles of dK and dV, and of dQ.
- **TFLOP/s** count only the pairs that the mask allows, **TB/s** each of q, k, v and o once. **p10 to p90**: the range of the middle 80 % of the samples,
  as a share of the median.

[benchmarking.md](benchmarking.md) says how a row is measured, and the [decisions](decisions/README.md) why the kernels are as they are, with the experiments
that did not help. To measure a machine again, and to compare it with what was there before:

    bench/results/measure.py --attune build/bench/attune --machine h200 --out after.json
    bench/results/measure.py --compare bench/results/h200-2026-11-22.json after.json
'''


def figure(row, unit):
    """Three digits; the reason where there is none."""
    key, scale = UNITS[unit]
    if 'median_seconds' not in row or key not in row:
        return '-'
    value = row[key] / scale
    return f'{value:,.0f}' if value >= 100 else f'{value:.1f}' if value >= 10 else f'{value:.2f}'


def title_of(row):
    return row['workload'] if row.get('kind') != 'peer' else row['workload'].replace('peer: ', '')


def spread(row):
    """How far the middle 80 % of the samples lie from the median."""
    if not row.get('p90_seconds') or not row.get('median_seconds'):
        return '-'
    return f'{100 * (row["p90_seconds"] - row["p10_seconds"]) / row["median_seconds"]:.0f} %'


def times(row, peer):
    """How many times as fast as a peer."""
    return f'{peer["median_seconds"] / row["median_seconds"]:.2f}' if 'median_seconds' in row and 'median_seconds' in peer else '-'


def peers_in(rows):
    return [device for device in PEERS if any(row.get('device') == device for row in rows)]


def table(rows, unit):
    """A line for each workload; PyTorch's rows of the same workload are columns. Of a single peer also how many times as fast attune is."""
    peers = peers_in(rows)
    own = [row for row in rows if row.get('device') not in PEERS]
    by = {(row['workload'], row['device']): row for row in rows if row.get('device') in PEERS}
    lines = ['| workload | shape | plan | ' + unit + ' | p10 to p90 |' + ''.join(f' {PEERS[peer]} |' for peer in peers),
             '|---' * (5 + len(peers)) + '|']
    if len(peers) == 1:
        lines = [lines[0] + ' times as fast |', lines[1] + '---|']
    for row in own:
        cells = [title_of(row), row.get('shape', '-'), row.get('plan', '-'), figure(row, unit), spread(row)]
        cells += [figure(by[row['workload'], peer], unit) if (row['workload'], peer) in by else '-' for peer in peers]
        if len(peers) == 1:
            cells.append(times(row, by.get((row['workload'], peers[0]), {})))
        lines.append('| ' + ' | '.join(cells) + ' |')
    return lines


def ranks_table(rows):
    """A line for each workload and direction over several devices, beside PyTorch's context parallelism."""
    peers = peers_in(rows)
    by = {(row['workload'], row['direction'], row['device']): row for row in rows if row.get('device') in PEERS}
    lines = ['| workload | one, ms | ranks, ms | times as fast | predicted, ms | messages hidden | imbalance | keys fetched, of a ring |'
             + ''.join(f' {PEERS[peer]}, ms |' for peer in peers), '|---' * (8 + len(peers)) + '|']
    for row in rows:
        if row.get('device') in PEERS:
            continue
        direction = next((word for word in row['name'].split('/') if word in ('backward', 'decode')), 'forward')
        milliseconds = lambda row, key='median_seconds': f'{row[key] * 1e3:.3g}' if row.get(key) else '-'
        share = lambda a, b: f'{100 * row[a] / b:.0f} %' if row.get(a) and b else '-'
        cells = [f'{row["workload"]}, {direction}', milliseconds(row, 'one_rank_seconds'), milliseconds(row),
                 f'{row["speedup"]:.2f}' if row.get('speedup') else '-', milliseconds(row, 'predicted_seconds'),
                 share('hidden_share', row.get('exchange_seconds', 0) > row.get('p90_seconds', 0) - row.get('p10_seconds', 0)),
                 f'{row["imbalance"]:.3f}' if row.get('imbalance') else '-', share('received_bytes', row.get('ring_bytes'))]
        cells += [milliseconds(by.get((row['workload'], direction, peer), {})) for peer in peers]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return lines


def against(rows):
    """Each of PyTorch's kernels: in how many rows attune is ahead, and by what least and largest factor."""
    lines = []
    own = {row['workload']: row for row in rows if row.get('device') not in PEERS}
    for peer in peers_in(rows):
        factors = [row['median_seconds'] / own[row['workload']]['median_seconds'] for row in rows
                   if row.get('device') == peer and 'median_seconds' in row and 'median_seconds' in own.get(row['workload'], {})]
        if factors:
            ahead = sum(factor > 1 for factor in factors)
            lines.append(f'- Beside {PEERS[peer]}, attune is faster in {ahead} of {len(factors)} rows: {min(factors):.2f} to {max(factors):.2f} times as fast.')
    return lines


def results():
    """{machine: {section: (date, section)}}, of each the newest."""
    found = {}
    for path in sorted(here.glob('*-*.json')):
        document = json.loads(path.read_text())
        machine = found.setdefault(document['machine'], {})
        for name, section in document['sections'].items():
            if name not in machine or machine[name][0] <= document['date']:
                machine[name] = (document['date'], section)
    return found


def device_of(context):
    parts = [value for key, value in context.items() if key.startswith('device ') and 'cpu' not in key]
    text = (parts[0] if parts else f'{context["cpu_name"]}, {context["num_cpus"]} threads').split('; uuid')[0]
    if 'torch' in context:
        text += f'; PyTorch {context["torch"]}'
    if 'cudnn' in context:
        text += f', cuDNN {context["cudnn"] // 10000}.{context["cudnn"] // 100 % 100}'
    return text


def command_of(data):
    words = data['command'].replace('{attune}', 'build/bench/attune')
    for backend in ('cuda', 'vulkan', 'opencl'):
        words = words.replace('{' + backend + '}', backend + ':0')
    return words


def contents(machines, sections):
    """A line for each machine, with links to its sections: a title that was there before has a number behind its anchor."""
    lines, seen = ['Contents:', ''], {}
    for machine, measured in machines:
        links = []
        for title in [machine.upper()] + [section['title'] for section in sections if section['name'] in measured]:
            anchor = re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
            number = seen[anchor] = seen.get(anchor, -1) + 1
            links.append(f'[{title}](#{anchor}{f"-{number}" if number else ""})')
        lines.append(f'- **{links[0]}**: ' + ', '.join(links[1:]))
    return lines + ['']


def page():
    sections = json.loads((here / 'sections.json').read_text())
    shortfalls = json.loads((here / 'shortfalls.json').read_text())
    # The machine with the most figures first.
    machines = sorted(results().items(), key=lambda item: -len(item[1]))
    lines = [HEAD] + contents(machines, sections)
    for machine, measured in machines:
        lines.append(f'## {machine.upper()}\n')
        for section in sections:
            if section['name'] not in measured:
                continue
            date, data = measured[section['name']]
            lines += [f'### {section["title"]}\n', f'{section["about"]} {device_of(data.get("context", {}))}; {date}.\n',
                      '    ' + command_of(data) + '\n']
            rows = data.get('rows', [])
            if section['unit'] == 'ranks':
                lines += ranks_table(rows)
            else:
                lines += table(rows, section['unit'])
                peaks = [f'{key.removeprefix("peak ")}: {value}' for key, value in data.get('context', {}).items() if key.startswith('peak ')]
                lines += [''] + [f'The device reaches, {peak}.' for peak in peaks] + against(rows)
            if section['name'] in shortfalls:
                lines += ['', 'Known shortfalls:', ''] + [f'- {text}' for text in shortfalls[section['name']]]
            lines.append('')
    return '\n'.join(lines).rstrip() + '\n'


def summary():
    measured = results()['h200']
    lines = ['| | attune | cuDNN | flex_attention | flash-2 |', '|---|---|---|---|---|']
    for title, section, *workloads in SUMMARY:
        rows = measured[section][1]['rows']
        cells = []
        for device in ['cuda:', *IN_README]:
            found = [figure(row, 'TFLOP/s') for name in workloads for row in rows if row['workload'] == name and row['device'].startswith(device)]
            cells.append(' / '.join(found) if set(found) != {'-'} else '-')
        lines.append(f'| {title} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines) + '\n'


def main():
    if sys.argv[1:] not in ([], ['--check']):
        sys.exit(__doc__)
    readme = README.read_text()
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    texts = {PAGE: page(), README: before + BEGIN + summary() + END + after}
    for path, text in texts.items():
        if sys.argv[1:] and (not path.exists() or path.read_text() != text):
            sys.exit(f'{path.relative_to(root)} is not what bench/results gives: run bench/results/page.py')
        path.write_text(text) if not sys.argv[1:] else print(f'{path.relative_to(root)} is current')


if __name__ == '__main__':
    main()
