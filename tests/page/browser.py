#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The page of `attune report` in headless Chromium: it draws, sorts, filters, fits a phone, is light or dark, and complains of nothing.
    browser.py SOURCE PROGRAM [FOLDER]      FOLDER keeps the pages and pictures
Exit status 77 (skipped) where no Chromium is installed, unless ATTUNE_REQUIRE names chromium."""
import html.parser
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

source, program = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
browser = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
HOSTILE = '</script><script>console.error("run")</script><img src=x onerror=alert(1)> & "quoted" \u2028'
errors = []


def expect(condition, words):
    if not condition:
        errors.append(words)


def bench_file(path, factor, seed, peak='900TFLOP/s, copy 4.20TB/s'):
    """A file as bench --json writes it: a sweep of two types, decode, a failed row, and words that are no markup."""
    generator, benchmarks = random.Random(seed), []
    for workload, q, k in [('causal', n, n) for n in (1024, 4096, 16384)] + [('decode', 1, 32768), ('dense', 2048, 2048)]:
        for dtype in ('f16', 'bf16'):
            name = f'{workload}/cuda:0/{dtype}/b1h16:4q{q}k{k}d128'
            flop, moved = 4 * q * k * 16 * 128, 4 * (2 * q * 16 + 2 * k * 4) * 128
            # Far more significant than the noise, except where the workload is dense.
            seconds = flop / 4e14 + moved / 4e12 + 1e-5
            times = [seconds * (factor if workload != 'dense' else 1) * generator.uniform(0.995, 1.005) for _ in range(12)]
            benchmarks += [{'name': name, 'run_name': name, 'run_type': 'iteration', 'real_time': 1e3 * t, 'time_unit': 'ms'} for t in times]
            middle = sorted(times)[6]
            benchmarks.append({
                'name': name + '_median', 'run_name': name, 'run_type': 'aggregate', 'workload': workload, 'kind': 'attention',
                'device': 'cuda:0', 'dtype': dtype, 'shape': f'b1h16:4q{q}k{k}d128', 'plan': 'cuda_sm90a 128x128', 'status': 'ok',
                'median_seconds': middle, 'p10_seconds': min(times), 'p90_seconds': max(times), 'samples': 12, 'density': 1.0,
                'flop_per_second': flop / middle, 'bytes_per_second': moved / middle, 'error_ratio': generator.uniform(0.5, 1.4),
                'compile_cold_seconds': generator.uniform(1, 3), 'compile_warm_seconds': 2e-3, 'flags': 'n' if dtype == 'f16' else ''})
    name = 'alibi/cuda:0/f16/b1'
    benchmarks.append({'name': name, 'run_name': name, 'run_type': 'iteration', 'error_occurred': True, 'real_time': 0, 'time_unit': 'ms',
                       'workload': 'alibi', 'kind': 'attention', 'device': 'cuda:0', 'dtype': 'f16', 'status': 'failed', 'message': HOSTILE})
    path.write_text(json.dumps({'context': {
        'date': '2026-01-02T03:04:05+0000', 'library_version': '0.1.0', 'direction': 'forward',
        'device cuda:0': f'Some GPU {HOSTILE}; driver 1; uuid 2; 132 compute units', 'json_schema_version': 1,
        'peak cuda:0 f16': f'{peak}, measured, best of 3'}, 'benchmarks': benchmarks}))


def apart_file(path):
    """Rows of serving and of ranks, which have charts of their own, as bench --json writes their medians."""
    rows = []
    for workload, count, keys in (('serve_llama_8b', 16, 131072), ('serve_tree', 512, 65536)):
        for dtype, seconds in (('f16', 300e-6), ('bf16:q8_0:bf16', 200e-6)):
            shape = f's16t{count}h32:8k{keys}d128'
            rows.append({'name': f'{workload}/cuda:0/{dtype}/{shape}', 'workload': workload, 'kind': 'serving', 'device': 'cuda:0', 'dtype': dtype, 'shape': shape,
                         'median_seconds': seconds, 'bytes_per_second': keys * 4096 / seconds, 'flop_per_second': keys * 16384 / seconds,
                         'tokens_per_second': count / seconds, 'density': -1, 'error_ratio': 0.8, 'plan': 'cuda_sm80 16x64'})
    for count, way, exchange, hidden in ((2, '', 1e-3, 0.75), (4, '', 1e-9, 0), (4, '/backward', 1e-3, 0), (2, '/decode', 0, 0)):
        shape = f'b1h16:4q{1 if way == "/decode" else 8192}k8192d128'
        rows.append({'name': f'causal/cuda:0/f16/{shape}/ranks:{count}{way}/nccl', 'workload': 'causal', 'kind': 'ranks', 'device': 'cuda:0', 'dtype': 'f16',
                     'shape': shape, 'median_seconds': 4e-3 / count, 'flop_per_second': 2e14 * count, 'density': 0.5, 'plan': 'transport nccl', 'ranks': count,
                     'one_rank_seconds': 3.5e-3, 'speedup': 3.5 / 4 * count, 'imbalance': 1 + 0.01 * count, 'most_fetched': 0.5,
                     'received_bytes': 0 if way == '/decode' else 1e6 * count, 'ring_bytes': 3e6 * (count - 1), 'exchange_seconds': exchange, 'hidden_share': hidden})
    for row in rows:
        row |= {'status': 'ok', 'samples': 9, 'p10_seconds': 0.98 * row['median_seconds'], 'p90_seconds': 1.02 * row['median_seconds']}
    path.write_text(json.dumps({'context': {'device cuda:0': 'Some GPU; driver 1; uuid 2; 132 compute units', 'peak cuda:0 f16': '900TFLOP/s, copy 4.20TB/s, measured'},
                                'benchmarks': [row | {'name': row['name'] + '_median', 'run_name': row['name'], 'run_type': 'aggregate', 'aggregate_name': 'median',
                                                      'real_time': 1e3 * row['median_seconds'], 'time_unit': 'ms'} for row in rows]}))


# In a frame as wide as a phone or a desk: what the page has, before and after a reader's clicks.
PROBE = '''<!DOCTYPE html><body><iframe style="border: 0; width: WIDTHpx; height: 900px"></iframe><script>
const frame = document.querySelector('iframe'), words = TEXT;
frame.srcdoc = words;
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, all = selector => [...page.querySelectorAll(selector)];
  const column = (table, title) => [...table.querySelectorAll('th')].findIndex(head => head.textContent === title);
  const rows = page.querySelector('#rows table'), at = column(rows, 'workload');
  const cells = () => [...rows.querySelectorAll('tbody tr')].map(row => row.children[at].textContent);
  const found = {sections: all('main > section').map(s => s.id), pictures: all('figure svg[role=img]').map(s => s.getAttribute('aria-label')),
    broken: all('svg *').filter(node => [...node.attributes].some(a => /NaN|undefined|Infinity/.test(a.value))).length,
    outside: all('figure svg[role=img]').flatMap(s => [...s.querySelectorAll('text')].filter(t => { const a = t.getBoundingClientRect(), b = s.getBoundingClientRect(); return a.left < b.left - 3 || a.right > b.right + 3; }).map(t => t.textContent)),
    drawn: all('figure svg[role=img] text').map(t => t.textContent),
    legend: all('figure .legend li').map(item => [item.textContent, item.innerHTML.match(/color-mix\([^"]*\)|--s\d/)?.[0]]),
    wide: page.documentElement.scrollWidth - frame.clientWidth, text: page.body.innerText, heat: all('.heat td div').map(d => d.textContent), before: cells()};
  const head = [...rows.querySelectorAll('th')][at];
  head.querySelector('button').click(); found.up = cells(); found.upState = head.getAttribute('aria-sort');
  head.querySelector('button').click(); found.down = cells(); found.downState = head.getAttribute('aria-sort');
  const input = page.getElementById('filter'); input.value = 'decode'; input.dispatchEvent(new Event('input')); found.filtered = cells();
  page.getElementById('theme').click(); found.paper = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  page.getElementById('theme').click(); found.night = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  found.unnamed = all('button, input, summary, a[href]').filter(node => !(node.textContent.trim() || page.querySelector(`label[for="${node.id}"]`))).length;
  found.unreachable = all('.scroll').filter(node => node.tabIndex !== 0).length;
  page.querySelector('details').open = true;
  setTimeout(() => { found.details = all('details table').length; const out = document.createElement('pre'); out.id = 'found'; out.textContent = JSON.stringify(found); document.body.replaceChildren(out); }, 100);
}, 400);
</script></body>'''


class Found(html.parser.HTMLParser):
    inside, text = False, ''

    def handle_starttag(self, tag, attrs):
        self.inside |= ('id', 'found') in attrs

    def handle_data(self, data):
        self.text += data if self.inside else ''


def chromium(folder, what, *arguments):
    command = [browser, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--enable-logging=stderr', '--no-first-run',
               f'--user-data-dir={folder / "profile"}', '--virtual-time-budget=5000', *arguments]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    complaints = [line for line in done.stderr.decode(errors='replace').splitlines() if 'CONSOLE' in line]
    expect(not complaints, f'{what}: the console says {complaints[:3]}')
    return done.stdout.decode(errors='replace')


def probe(folder, page, width):
    text = json.dumps(page.read_text()).replace('<', '\\u003c')
    wrapper = folder / 'probe.html'
    wrapper.write_text(PROBE.replace('WIDTH', str(width)).replace('TEXT', text))
    parser = Found()
    parser.feed(chromium(folder, f'{page.name} at {width}', '--window-size=1400,1000', '--dump-dom', wrapper.as_uri()))
    expect(parser.text, f'{page.name} at {width}: the page did not answer')
    return json.loads(parser.text) if parser.text else None


def pixels(path):
    """Width, height and the rows of an 8-bit RGB or RGBA picture, as bytes of RGB."""
    data = path.read_bytes()
    width, height, depth, kind = struct.unpack('>IIBB', data[16:26])
    assert depth == 8 and kind in (2, 6), (depth, kind)
    at, packed, size = 8, b'', 3 if kind == 2 else 4
    while at < len(data):
        length, name = struct.unpack('>I4s', data[at:at + 8])
        packed += data[at + 8:at + 8 + length] if name == b'IDAT' else b''
        at += 12 + length
    raw, stride, previous, rows = zlib.decompress(packed), width * size, bytes(width * size), []
    for y in range(height):
        how, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride if how else 0):
            a, b, c = line[i - size] if i >= size else 0, previous[i], previous[i - size] if i >= size else 0
            if how == 1:
                add = a
            elif how == 2:
                add = b
            elif how == 3:
                add = (a + b) // 2
            else:
                p = a + b - c
                add = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[i] = (line[i] + add) & 255
        previous = bytes(line)
        rows.append(previous if size == 3 else bytes(v for i, v in enumerate(previous) if i % 4 != 3))
    return width, height, rows


def picture(folder, page, width, height, dark):
    out = folder / f'{page.stem}-{width}-{"dark" if dark else "light"}.png'
    chromium(folder, out.name, f'--window-size={width},{height}', f'--screenshot={out}', page.as_uri() + ('#theme=dark' if dark else '#theme=light'))
    expect(out.exists(), f'{out.name} was not written')
    if not out.exists():
        return
    found = pixels(out)
    expect(found[:2] == (width, height), f'{out.name} is {found[:2]}')
    colours = [row[i:i + 3] for row in found[2][::2] for i in range(0, len(row), 6)]
    paper, blue = ((0x10, 0x13, 0x18), (0x6a, 0xa5, 0xff)) if dark else ((255, 255, 255), (0x1d, 0x5f, 0xd1))
    share = colours.count(bytes(paper)) / len(colours)
    expect(0.3 < share < 0.97, f'{out.name}: {share:.2f} of it is paper')
    expect(colours.count(bytes(blue)) > 500, f'{out.name}: only {colours.count(bytes(blue))} points have the first colour')
    expect(len(set(colours)) > 30, f'{out.name}: {len(set(colours))} colours')


def report(folder, name, *arguments):
    page = folder / f'{name}.html'
    done = subprocess.run([program, 'report', *map(str, arguments), '-o', str(page)], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f'attune report {name}: {done.returncode}: {done.stderr}')
    text = page.read_text()
    for word in ('http://', 'https://', '<link', '<img', '@import', 'src='):
        expect(word not in text.replace('http://www.w3.org/2000/svg', '').replace('\\u003cimg src=x', ''), f'{name}: the page has {word}')
    return page


def main(folder):
    one = report(folder, 'one', source / 'bench/results/h200-2026-11-22.json')
    bench_file(folder / 'first.json', 1, 1)
    bench_file(folder / 'second.json', 0.5, 2)
    both = report(folder, 'both', folder / 'first.json', folder / 'second.json')
    common = ['summary', 'workloads', 'lengths', 'decode', 'roofline', 'compile', 'errors', 'rows', 'about']
    for page, sections in ((one, common), (both, [*common[:5], 'comparison', *common[5:]])):
        for width in (1200, 390):
            found, what = probe(folder, page, width), f'{page.name} at {width}'
            if not found:
                continue
            expect(found['sections'] == sections, f'{what}: sections {found["sections"]}')
            expect(len(found['pictures']) >= 7 and all(found['pictures']), f'{what}: pictures {found["pictures"]}')
            expect(found['broken'] == 0, f'{what}: {found["broken"]} marks have no place')
            expect(not found['outside'], f'{what}: words leave their picture: {found["outside"][:5]}')
            expect(found['wide'] <= 0, f'{what}: is {found["wide"]} wider than its frame')
            expect(found['up'] == sorted(found['before'], key=lambda word: (word.lower(), word)) and found['upState'] == 'ascending', f'{what}: does not sort')
            expect(found['down'] == found['up'][::-1] or sorted(found['down']) == sorted(found['up']) and found['down'][0] == found['up'][-1],
                   f'{what}: does not sort downwards')
            expect(0 < len(found['filtered']) < len(found['before']), f'{what}: does not filter')
            expect(found['paper'] == 'rgb(255, 255, 255)' and found['night'] == 'rgb(16, 19, 24)', f'{what}: themes {found["paper"]}, {found["night"]}')
            expect(not found['unnamed'] and not found['unreachable'], f'{what}: a control has no name, or no way by keyboard')
            expect(found['details'] == (2 if page is both else 0), f'{what}: a chart has no table')
            if page is both:
                expect('</script><script>console.error("run")</script>' in found['text'], f'{what}: words are not shown as they are')
                ratios = [float(word.strip('×? ')) for word in found['heat']]
                expect(len(ratios) == 10 and sum(1.9 < ratio < 2.1 for ratio in ratios) == 8, f'{what}: speed-ups {found["heat"]}')
                expect('8 rows faster, 0 slower, 2 the same, 1 undecided' in found['text'], f'{what}: no verdicts')
            else:
                expect('1.14 times faster than PyTorch cuDNN (Forward)' in found['text'], f'{what}: no peers')
    # Serving and ranks, which no other chart has.
    apart_file(folder / 'apart.json')
    apart = report(folder, 'apart', folder / 'apart.json')
    for width in (1200, 390):
        found, what = probe(folder, apart, width), f'apart at {width}'
        if not found:
            continue
        expect(found['sections'] == ['summary', 'serving', 'ranks', 'roofline', 'errors', 'rows', 'about'], f'{what}: sections {found["sections"]}')
        expect(found['pictures'][:7] == ['Serving on Some GPU, CUDA: B/s', 'Serving: time of a layer', 'Serving: tokens per second', 'Ranks: speed-up',
                                         'Ranks: hidden share of the exchange', 'Ranks: imbalance', 'Ranks: bytes fetched'], f'{what}: pictures {found["pictures"]}')
        expect(found['broken'] == 0, f'{what}: {found["broken"]} marks have no place')
        expect(not found['outside'], f'{what}: words leave their picture: {found["outside"][:5]}')
        expect(found['wide'] <= 0, f'{what}: is {found["wide"]} wider than its frame')
        expect(found['details'] == 1, f'{what}: a chart has no table')
        # Two rows have no hidden share, and one hides nothing, which is a figure.
        expect(found['drawn'].count('no figure') == 2, f'{what}: {found["drawn"]}')
        for words in ('3.50', '75.0', '0', '1.04', '1.79 f16', '2.68 bf16:q8_0:bf16'):
            expect(words in found['drawn'], f'{what}: {words} is not drawn: {found["drawn"]}')
    # Another program's file, one whose rows all failed, and one with values of the wrong type.
    entry = {'run_type': 'iteration', 'time_unit': 'us'}
    (folder / 'other.json').write_text(json.dumps({'benchmarks': [entry | {'name': f'BM_{n}/8', 'real_time': 3.5 * n} for n in (1, 2, 3) for _ in range(9)]}))
    (folder / 'failed.json').write_text(json.dumps({'context': {'device ': 'x', 'peak cpu f32': 7}, 'benchmarks': [
        entry | {'name': 'a', 'run_name': 'a', 'error_occurred': True, 'status': 'failed', 'message': HOSTILE}]}))
    (folder / 'odd.json').write_text(json.dumps({'sections': {'x': {'context': [3], 'command': 5, 'rows': [
        {'name': 'a/b/c', 'workload': 3, 'device': [], 'status': 'ok', 'median_seconds': 'soon', 'shape': 'b0h0:0q0k0d0', 'density': -1e308},
        {'name': 'b', 'status': 'ok', 'median_seconds': 1e-300, 'p10_seconds': -1, 'flop_per_second': 1e300, 'kind': 'mask'}]}}}))
    for name in ('other', 'failed', 'odd'):
        found = probe(folder, report(folder, name + '-page', folder / f'{name}.json'), 700)
        if found:
            expect(found['sections'][0] == 'summary' and 'rows' in found['sections'], f'{name}: sections {found["sections"]}')
            expect(found['broken'] == 0, f'{name}: {found["broken"]} marks have no place')
            expect(name != 'other' or 'Workloads: time' in found['pictures'], f'{name}: pictures {found["pictures"]}')
    # Each peer has its name and a colour of its own.
    peers = {'torch-cudnn': 'PyTorch cuDNN', 'torch-flash': 'PyTorch flash', 'torch-flex': 'PyTorch flex_attention', 'torch-fa4': 'FlashAttention-4'}
    (folder / 'peers.json').write_text(json.dumps({'sections': {'forward': {'rows': [
        {'name': f'causal/{device}/f16/b1', 'workload': 'causal', 'device': device, 'dtype': 'f16', 'shape': 'b1h16:16q4096k4096d128', 'status': 'ok',
         'kind': 'peer' if device in peers else 'attention', 'median_seconds': 1e-3 * n, 'p10_seconds': 0.9e-3 * n, 'p90_seconds': 1.1e-3 * n,
         'samples': 9, 'flop_per_second': 5e14 / n, 'density': 1.0} for n, device in enumerate(('cuda:0', *peers), 1)]}}}))
    found = probe(folder, report(folder, 'peers-page', folder / 'peers.json'), 1200)
    if found:
        legend = {words: colour for words, colour in found['legend'] if words in (*peers.values(), 'cuda:0')}
        expect(len(legend) == 5 and len(set(legend.values())) == 5 and all(legend.values()), f'peers: colours {found["legend"]}')
    # So it has in each of several files, where a colour is the same but for its strength.
    shutil.copy(folder / 'peers.json', folder / 'later.json')
    found = probe(folder, report(folder, 'peers-twice', folder / 'peers.json', folder / 'later.json'), 1200)
    if found:
        legend = {words: colour for words, colour in found['legend'] if words.endswith((' · peers', ' · later'))}
        expect(len(legend) == 10 and len(set(legend.values())) == 10 and all(legend.values()), f'peers, twice: colours {found["legend"]}')
        expect(all(legend[f'{by} · later'] in legend[f'{by} · peers'] for by in peers.values()), f'peers, twice: colours {found["legend"]}')
    # A processor's roofline, whose slope begins at the axis.
    bench_file(folder / 'slow.json', 1, 3, '36.8GFLOP/s, copy 13.2GB/s')
    for width in (1200, 390):
        found = probe(folder, report(folder, 'slow-page', folder / 'slow.json'), width)
        expect(not found or not found['outside'], f'slow at {width}: words leave their picture: {found and found["outside"][:5]}')
    for page in (one, both, apart):
        picture(folder, page, 1280, 1600, False)
    picture(folder, one, 1280, 1600, True)
    picture(folder, both, 500, 2400, True)
    picture(folder, apart, 500, 2400, True)


if not browser:
    print('chromium is not installed (apt-get install chromium): the page of attune report was not looked at')
    sys.exit(1 if 'chromium' in os.environ.get('ATTUNE_REQUIRE', '').split(',') else 77)
if sys.argv[3:]:
    pathlib.Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    main(pathlib.Path(sys.argv[3]).resolve())
else:
    with tempfile.TemporaryDirectory() as scratch:
        main(pathlib.Path(scratch))
print('\n'.join(errors) or 'eight pages, on a desk and a phone, light and dark')
sys.exit(bool(errors))
