#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the sections of sections.json on this machine and keeps the medians as data (docs/performance.md shows them).

    bench/results/measure.py --attune build/bench/attune --machine h200 --out bench/results/h200-2026-11-22.json
    bench/results/measure.py --attune build/bench/attune --machine h200 --only decode,captures --out decode.json
    bench/results/measure.py --merge a.json b.json --out both.json
    bench/results/measure.py --compare before.json after.json        # exit status 1 if a row is more than 2 % slower

A section that fails is recorded with its reason, and the others go on. Run it in the repository's root.
"""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
# Members of a row that the page shows or a later comparison needs.
KEPT = ('workload', 'kind', 'device', 'dtype', 'shape', 'plan', 'status', 'message', 'median_seconds', 'p10_seconds', 'p90_seconds',
        'samples', 'density', 'flop_per_second', 'bytes_per_second', 'share_of_peak_flops', 'share_of_peak_bandwidth',
        'compile_cold_seconds', 'compile_warm_seconds', 'mask_seconds', 'device_bytes', 'tokens_per_second', 'ranks', 'direction',
        'one_rank_seconds', 'speedup', 'imbalance', 'most_fetched', 'received_bytes', 'ring_bytes', 'exchanged_bytes', 'computing_seconds', 'exchange_seconds', 'hidden_share',
        'predicted_seconds', 'link_bytes_per_second')
CONTEXT = ('date', 'cpu_name', 'num_cpus', 'library_version', 'torch', 'cudnn', 'gpu')


def number(value):
    return float(f'{value:.5g}') if isinstance(value, float) else value


def rows_of(document):
    """A row for each name: its median, or the one entry of a row that has none."""
    rows = {}
    for entry in document['benchmarks']:
        if 'status' in entry:
            row = {key: number(entry[key]) for key in KEPT if entry.get(key) not in (None, '', 0, -1)}
            rows[entry['run_name']] = {'name': entry['run_name']} | row
    return list(rows.values())


def measure(section, options):
    words = section['command']
    for key in ('attune', 'cuda', 'vulkan', 'opencl'):
        words = words.replace('{' + key + '}', getattr(options, key))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / 'out.json'
        command = shlex.split(words) + ['--json', str(out)]
        environment = os.environ | {'XDG_CACHE_HOME': folder}
        print(f'== {section["name"]}: {words}', file=sys.stderr, flush=True)
        begin = datetime.datetime.now(datetime.timezone.utc)
        try:
            code = subprocess.run(command, stdout=sys.stderr, timeout=options.timeout, env=environment, check=False).returncode
        except OSError as error:
            return {'command': section['command'], 'failed': str(error).replace(folder, '')}
        except subprocess.TimeoutExpired:
            code = f'stopped after {options.timeout:g} s'
        try:
            document = json.loads(out.read_text())  # of a command that was stopped too, if it writes what it has
        except (OSError, ValueError) as error:
            return {'command': section['command'], 'failed': str(error).replace(folder, ''), 'exit': code}
    context = document['context']
    kept = {key: context[key] for key in context if key in CONTEXT or key.startswith(('device ', 'peak '))}
    seconds = (datetime.datetime.now(datetime.timezone.utc) - begin).total_seconds()
    return {'command': section['command'], 'exit': code, 'seconds': round(seconds), 'load': os.getloadavg()[0],
            'context': kept, 'rows': rows_of(document)}


def compare(before, after, noise):
    """Prints a line for each row that both have; returns how many are slower."""
    slower = 0
    for name, section in before['sections'].items():
        later = {row['name']: row for row in after['sections'].get(name, {}).get('rows', [])}
        for row in section.get('rows', []):
            if row.get('kind') == 'peer' or 'median_seconds' not in row or 'median_seconds' not in later.get(row['name'], {}):
                continue
            ratio = later[row['name']]['median_seconds'] / row['median_seconds']
            bad = ratio > 1 + noise / 100
            slower += bad
            print(f'{"SLOWER" if bad else "faster" if ratio < 1 - noise / 100 else "same":7}{100 * (ratio - 1):+7.1f} %  '
                  f'{row["median_seconds"] * 1e3:10.4f} ms  {name}: {row["name"]}')
    return slower


def merge(paths):
    results = {}
    for path in paths:
        one = json.loads(path.read_text())
        results = one | {'sections': results.get('sections', {}) | one['sections']}
    return results


def write(results, path):
    path.write_text(json.dumps(results, indent=1) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--attune', default='build/bench/attune')
    parser.add_argument('--machine', help='by which the page groups, such as h200')
    parser.add_argument('--cuda', default='cuda:0', help='the device that {cuda} stands for in a command')
    parser.add_argument('--vulkan', default='vulkan:0')
    parser.add_argument('--opencl', default='opencl:0')
    parser.add_argument('--only', default='', help='sections, with commas between')
    parser.add_argument('--timeout', type=float, default=400, help='seconds of a section')
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--merge', type=pathlib.Path, nargs='+', help='files whose sections become one file; the last one that has a section counts')
    parser.add_argument('--compare', type=pathlib.Path, nargs=2, metavar=('BEFORE', 'AFTER'))
    parser.add_argument('--noise', type=float, default=2, help='percent that are no change')
    options = parser.parse_args()
    if options.compare:
        sys.exit(bool(compare(*(json.loads(path.read_text()) for path in options.compare), options.noise)))
    if not options.out or not (options.merge or options.machine):
        parser.error('--out, and --machine or --merge, are needed')
    if options.merge:
        write(merge(options.merge), options.out)
        return
    sections = {section['name']: section for section in json.loads((here / 'sections.json').read_text())}
    wanted = options.only.split(',') if options.only else list(sections)
    if unknown := set(wanted) - set(sections):
        parser.error(f'no section is called {", ".join(sorted(unknown))}')
    results = {'machine': options.machine, 'date': datetime.date.today().isoformat(), 'sections': {}}
    for name in [name for name in sections if name in wanted]:
        results['sections'][name] = measure(sections[name], options)
        write(results, options.out)  # after each: what is measured outlives a run that is stopped


if __name__ == '__main__':
    main()
