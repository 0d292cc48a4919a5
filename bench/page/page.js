/* SPDX-License-Identifier: MIT */
/* Draws the report from the data beside it. Text reaches the page as text nodes only. Charts are drawn again when their width changes. */
'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const main = document.getElementById('main');
const SVG = 'http://www.w3.org/2000/svg';

function make(space, name, attributes, ...children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}
const html = (name, attributes, ...children) => make(null, name, attributes, ...children);
const svg = (name, attributes, ...children) => make(SVG, name, attributes, ...children);

/* ------------------------------------------------------------------------------------------------------- figures */

/* Three significant digits. */
function digits(value) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
}
function scaled(value, unit) {
  const steps = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
  const [scale, prefix] = steps.find(([step]) => Math.abs(value) >= 0.9995 * step) || [1, ''];
  return `${digits(value / scale)} ${prefix}${unit}`;
}
function time(seconds) {
  const [scale, unit] = seconds >= 1 ? [1, 's'] : seconds >= 1e-3 ? [1e-3, 'ms'] : seconds >= 1e-6 ? [1e-6, 'µs'] : [1e-9, 'ns'];
  return `${digits(seconds / scale)} ${unit}`;
}
const whole = value => value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : String(value);
const median = list => { const s = [...list].sort((a, b) => a - b), m = s.length >> 1; return s.length % 2 ? s[m] : (s[m - 1] + s[m]) / 2; };
const geometric = list => Math.exp(list.reduce((sum, x) => sum + Math.log(x), 0) / list.length);

/* A unit for all figures of one chart. */
function unitOf(values, unit) {
  const most = Math.max(...values);
  const [scale, prefix] = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([step]) => most >= step) || [1, ''];
  return { scale, name: prefix + unit };
}

/* ------------------------------------------------------------------------------------------------------------ rows */

const PEERS = { 'torch-cudnn': 'PyTorch cuDNN', 'torch-flash': 'PyTorch flash', 'torch-flex': 'PyTorch flex_attention', 'torch-fa4': 'FlashAttention-4' };
const groups = [];
const several = data.files.length > 1;
data.files.forEach((file, index) => file.groups.forEach(group => {
  const shapes = new Map(group.rows.filter(row => row.shape && row.kind !== 'peer').map(row => [row.workload, row.shape]));
  for (const row of group.rows) {
    for (const key of ['name', 'kind', 'device', 'dtype', 'shape', 'plan', 'status', 'message', 'flags']) row[key] = row[key] || '';
    row.file = index;
    row.group = group;
    const found = /^b(\d+)h(\d+):(\d+)q(\d+)k(\d+)d(\d+)(?::(\d+))?/.exec(row.shape || shapes.get(row.workload) || '');
    if (found) [row.batch, row.heads, row.kvHeads, row.q, row.k, row.d] = found.slice(1, 7).map(Number);
    row.ok = row.status === 'ok' && row.median_seconds > 0;
    row.peer = row.kind === 'peer';
    row.by = PEERS[row.device] || (row.peer ? row.workload.replace(/^peer: /, '') : identity(group, row.device));
  }
  groups.push({ ...group, file: index });
}));

/* A device by its name and backend: two of one kind are one. */
function identity(group, device) {
  const text = (group.context || {})[`device ${device}`];
  const name = text ? String(text).split(';')[0] : '';
  const backend = String(device || '').split(':')[0];
  const profile = String(device || '').split('@')[1];
  return (name ? `${name}${backend === 'cpu' ? '' : `, ${backend === 'cuda' ? 'CUDA' : backend.slice(0, 1).toUpperCase() + backend.slice(1)}`}` : device || 'host') + (profile ? ` as ${profile}` : '');
}
const label = index => data.files[index].label;
const seriesName = row => several ? `${row.by} · ${label(row.file)}` : row.by;
const all = groups.flatMap(group => group.rows);
/* Bytes per second; in decode only those of keys that the mask allows. */
const read = row => (row.bytes_per_second || 0) * (decodes(row) && row.density > 0 ? row.density : 1);
const decodes = row => row.kind !== 'ranks' && row.q !== undefined && row.q <= 16;
/* Kinds that have a section of their own. */
const apart = row => row.kind === 'serving' || row.kind === 'ranks';

/* A device, or a peer, has a colour of its own in all files, paler in earlier ones. The device with most rows has the first; peers have
   quieter ones. */
const count = name => all.reduce((sum, row) => sum + (row.by === name), 0);
const own = [...new Set(all.filter(row => !row.peer && row.kind !== 'mask').map(row => row.by))].sort((a, b) => count(b) - count(a));
const others = [...new Set(all.filter(row => row.peer && PEERS[row.device]).map(row => row.by))];
const OWN = [0, 3, 4, 7, 6], OTHERS = [1, 2, 5, 8];
const series = new Map(all.map(row => [seriesName(row), row]));
function colour(name) {
  const row = series.get(name), { by, file } = row || { by: name, file: 0 };
  const full = `var(--s${others.includes(by) ? OTHERS[others.indexOf(by) % OTHERS.length] : OWN[Math.max(0, own.indexOf(by)) % OWN.length]})`;
  const earlier = data.files.length - 1 - file;
  return earlier ? `color-mix(in srgb, ${full} ${Math.max(25, 100 - earlier * (data.files.length > 2 ? 30 : 50))}%, var(--paper))` : full;
}

/* ---------------------------------------------------------------------------------------------------------- layout */

const contents = document.getElementById('contents');
function section(id, title, ...children) {
  const node = html('section', { id, 'aria-labelledby': `${id}-title` }, html('h2', { id: `${id}-title` }, title), ...children);
  contents.append(html('a', { href: `#${id}` }, title));
  main.append(node);
  return node;
}

function table(columns, rows, options = {}) {
  const body = html('tbody');
  const fill = list => body.replaceChildren(...list.map(row => html('tr', {}, columns.map(column => {
    const value = column.value(row), kind = column.kind ? column.kind(row) : '';
    return html('td', { class: [column.number ? 'num' : '', column.wrap ? 'wrap' : '', kind].join(' ').trim() || null }, column.text ? column.text(row) : String(value ?? ''));
  }))));
  const heads = columns.map(column => {
    const button = html('button', { type: 'button' }, column.title);
    const head = html('th', { scope: 'col', class: column.number ? 'num' : null }, button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      heads.forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      shown.sort((a, b) => {
        const x = column.value(a), y = column.value(b);
        const gone = value => value === undefined || value === null || value === '' || Number.isNaN(value);
        if (gone(x) || gone(y)) return gone(x) - gone(y);
        return (column.number ? x - y : String(x).localeCompare(String(y))) * (down ? -1 : 1);
      });
      fill(shown);
    });
    return head;
  });
  let shown = [...rows];
  fill(shown);
  const node = html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': options.label || 'Table' }, html('table', {}, html('thead', {}, html('tr', {}, heads)), body));
  node.filter = words => { shown = rows.filter(row => words.every(word => row.text.includes(word))); fill(shown); return shown.length; };
  return node;
}

/* A figure whose drawing follows the width. draw(width) returns the SVG's children and height; the same figures are a table. */
function figure(title, draw, columns, rows, legend) {
  const holder = html('div', {});
  const node = html('figure', {}, legend ? html('ul', { class: 'legend' }, legend.map(item => html('li', {}, swatch(item), item.name))) : null, holder);
  let width = 0;
  const render = () => {
    const now = Math.floor(holder.clientWidth);
    if (!now || now === width) return;
    width = now;
    const { height, marks } = draw(width);
    holder.replaceChildren(svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': title }, marks));
  };
  new ResizeObserver(render).observe(holder);
  pending.push(render);
  if (columns) {
    const details = html('details', {}, html('summary', {}, 'Figures as a table'));
    details.addEventListener('toggle', () => { if (details.open && details.children.length === 1) details.append(table(columns, rows, { label: title })); });
    node.append(details);
  }
  return node;
}
const pending = [];
function swatch(item) {
  const shape = item.line ? svg('line', { x1: 0, x2: 12, y1: 6, y2: 6, class: 'mark' })
    : item.hollow ? svg('circle', { cx: 6, cy: 6, r: 4, fill: 'none', stroke: item.colour, 'stroke-width': 1.75 })
      : item.dot ? svg('circle', { cx: 6, cy: 6, r: 4.5, fill: item.colour }) : svg('rect', { x: .5, y: .5, width: 11, height: 11, rx: 2, fill: item.colour, stroke: 'var(--line)' });
  return svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, shape);
}
const note = (tip, ...marks) => svg('g', {}, svg('title', {}, tip), ...marks);
const text = (x, y, anchor, words, extra = '') => svg('text', { x, y, 'text-anchor': anchor, class: extra || null }, words);

/* Measures words in the page's font. */
const pen = document.createElement('canvas').getContext('2d');
function widthOf(words, size = 12) {
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(words).width;
}
function cut(words, room) {
  if (widthOf(words) <= room) return words;
  let length = words.length;
  while (length > 1 && widthOf(`${words.slice(0, length)}…`) > room) length--;
  return `${words.slice(0, length)}…`;
}

/* Ticks at 1, 2 or 5 times a power of ten. */
function ticks(most, count) {
  const raw = most / count, power = 10 ** Math.floor(Math.log10(raw)), ratio = raw / power;
  const step = power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
  const list = [];
  for (let i = 0; i * step <= most * 1.0001; i++) list.push(i * step);
  return list;
}
function powers(least, most, base = 10) {
  const list = [];
  for (let e = Math.floor(Math.log(least) / Math.log(base) + 1e-9); base ** e <= most * 1.0001; e++) if (base ** e >= least * 0.9999) list.push(base ** e);
  return list;
}
/* At most `count` of a list, evenly spaced. */
const thin = (list, count) => { const step = Math.ceil(list.length / Math.max(1, count)); return list.filter((_, i) => i % step === 0); };
const plain = value => value === 0 ? '0' : value >= 1e4 && value < 1e6 && value % 1e3 === 0 ? `${value / 1e3}k` : Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(3));

/* ------------------------------------------------------------------------------------------------------------- bars */

/* Horizontal bars: a block for each workload, a bar for each series. metric(row) is the length; from low(row) to high(row) are most
   samples; `limit` is a marked value, or one of each row: {name, of(row)}; place(row) is the block, if not the workload; `zero`: bars
   may have no length. */
function bars(title, rows, metric, unit, { low, high, limit, place, zero, least = 0 } = {}) {
  const blocks = new Map(), has = row => row.ok && (metric(row) > 0 || zero && metric(row) === 0);
  for (const row of rows) {
    const key = place ? place(row) : rows.some(other => other !== row && other.workload === row.workload && seriesName(other) === seriesName(row) && other.dtype === row.dtype && other.shape !== row.shape)
      ? `${row.workload.replace(/^peer: (OpenBLAS )?/, '')} ${row.shape || ''}` : row.workload.replace(/^peer: /, '');
    if (!blocks.has(key)) blocks.set(key, []);
    blocks.get(key).push(row);
  }
  const types = new Set(rows.map(row => row.dtype).filter(type => type && type !== '-'));
  const nameOf = row => seriesName(row) + (types.size > 1 ? ` ${row.dtype}` : '');
  const timed = rows.filter(has);
  const most = Math.max(...timed.map(row => Math.max(high ? high(row) || metric(row) : metric(row), limit && limit.of ? limit.of(row) || 0 : 0)), limit && limit.value || 0, least) || 1;
  const { scale, name } = typeof unit === 'string' ? unitOf([most], unit) : unit;
  const used = [...new Set(rows.filter(row => !row.peer || PEERS[row.device]).map(seriesName))];
  const legend = used.length > 1 || limit ? used.map(series => ({ name: series, colour: colour(series) })) : null;
  if (limit && legend) legend.push({ name: limit.of ? limit.name : `${limit.name}: ${digits(limit.value / scale)} ${name}`, line: true });
  const fill = row => row.peer && !PEERS[row.device] ? 'var(--s1)' : colour(seriesName(row));
  const draw = width => {
    const narrow = width < 560, bar = 13, gap = 3, between = narrow ? 12 : 13;
    const left = narrow ? 0 : Math.min(250, Math.max(...[...blocks.keys()].map(key => widthOf(key))) + 14);
    const right = 56 + (types.size > 1 ? 6 + Math.max(...[...types].map(type => widthOf(type))) : 0), x = value => left + (width - left - right) * value / most;
    const marks = [], steps = ticks(most / scale, narrow ? 4 : 6);
    let y = 8;
    const body = [];
    for (const [key, list] of blocks) {
      if (narrow) body.push(text(4, (y += 12), 'start', cut(key, width - 4), 'ink'));
      if (narrow) y += 5;
      else body.push(text(left - 10, y + (list.length * (bar + gap) - gap) / 2 + 4, 'end', cut(key, left - 12), 'ink'));
      for (const row of list) {
        if (!has(row)) {
          body.push(note(`${key}, ${nameOf(row)}: ${row.status}: ${row.message || ''}`, svg('rect', { x: left, y: y + bar / 2 - 1, width: 10, height: 2, fill: fill(row) }), text(left + 15, y + bar - 3, 'start', cut(row.status === 'ok' ? 'no figure' : row.status, width - left - 15))));
        } else {
          const end = x(metric(row)), tip = `${key}, ${nameOf(row)}: ${digits(metric(row) / scale)} ${name}, ${time(row.median_seconds)}${row.plan ? `, ${row.plan}` : ''}`;
          const group = [svg('rect', { x: left, y, width: Math.max(1, end - left), height: bar, rx: 1.5, fill: fill(row) })];
          let after = end;
          if (low && low(row) > 0 && high(row) > 0) {
            after = Math.max(end, x(high(row)));
            group.push(svg('path', { class: 'whisker', fill: 'none', d: `M${x(low(row))} ${y + bar / 2}H${x(high(row))}M${x(low(row))} ${y + 4}v${bar - 8}M${x(high(row))} ${y + 4}v${bar - 8}` }));
          }
          if (limit && limit.of && limit.of(row) > 0) {
            const goal = x(limit.of(row));
            group.push(svg('path', { class: 'mark', d: `M${goal} ${y - 1}v${bar + 2}` }));
            // Nearer to the end of the bar than words are wide, it would cross them.
            if (goal >= after && goal < after + 60) after = goal;
          }
          group.push(text(after + 5, y + bar - 3, 'start', digits(metric(row) / scale) + (types.size > 1 ? ` ${row.dtype}` : ''), 'halo'));
          body.push(note(tip, ...group));
        }
        y += bar + gap;
      }
      y += between - gap;
    }
    for (const step of steps) marks.push(svg('line', { class: step ? 'grid' : 'axis', x1: x(step * scale), x2: x(step * scale), y1: 2, y2: y }), text(x(step * scale), y + 15, step ? 'middle' : narrow ? 'start' : 'middle', plain(step)));
    if (limit && !limit.of) marks.push(svg('line', { class: 'mark', x1: x(limit.value), x2: x(limit.value), y1: 2, y2: y }));
    marks.push(...body);
    marks.push(text(x(most), y + 32, 'end', name));
    return { height: y + 38, marks };
  };
  const columns = [
    { title: 'workload', value: row => row.workload }, { title: 'by', value: nameOf },
    { title: name, number: true, value: row => row.ok ? metric(row) / scale : undefined, text: row => has(row) ? digits(metric(row) / scale) : row.ok ? 'no figure' : row.status },
    limit && limit.of ? { title: limit.name, number: true, value: row => limit.of(row) ? limit.of(row) / scale : undefined, text: row => limit.of(row) ? digits(limit.of(row) / scale) : '' } : null,
    { title: 'time', number: true, value: row => row.median_seconds, text: row => row.ok ? time(row.median_seconds) : '' },
    { title: 'plan', value: row => row.plan || row.message || '', wrap: true }].filter(Boolean);
  return figure(title, draw, columns, rows, legend);
}

/* ----------------------------------------------------------------------------------------------------------- scatter */

/* A plane with two axes. axis: {least, most, base (of a logarithmic one), list, show, name}. */
function plane(width, height, xs, ys, left) {
  const margin = { left, right: 18, top: 10, bottom: 42 };
  const at = (axis, value, from, to) => {
    const part = axis.base ? Math.log(value / axis.least) / Math.log(axis.most / axis.least) : (value - axis.least) / (axis.most - axis.least);
    return from + (to - from) * part;
  };
  const x = value => at(xs, value, margin.left, width - margin.right), y = value => at(ys, value, height - margin.bottom, margin.top);
  const marks = [];
  for (const value of thin(xs.list, Math.floor((width - left) / 52))) marks.push(svg('line', { class: 'grid', x1: x(value), x2: x(value), y1: margin.top, y2: height - margin.bottom }), text(x(value), height - margin.bottom + 16, 'middle', xs.show(value)));
  for (const value of ys.list) marks.push(svg('line', { class: 'grid', x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }), text(margin.left - 8, y(value) + 4, 'end', ys.show(value)));
  marks.push(svg('path', { class: 'axis', fill: 'none', d: `M${margin.left} ${margin.top}V${height - margin.bottom}H${width - margin.right}` }));
  marks.push(text(width - margin.right, height - 6, 'end', xs.name), text(margin.left + 6, margin.top + 8, 'start', ys.name, 'halo'));
  return { x, y, marks, margin };
}

/* ---------------------------------------------------------------------------------------------------------- summary */

function devicesOf() {
  const found = new Map();
  for (const group of groups)
    for (const [key, value] of Object.entries(group.context || {})) {
      const [, kind, id, type] = /^(device|peak) (\S+)(?: (\S+))?$/.exec(key) || [];
      if (!kind) continue;
      const name = identity(group, id);
      if (!found.has(name)) found.set(name, { name, driver: '', units: '', peaks: new Map(), copy: 0 });
      const device = found.get(name), words = String(value);
      if (kind === 'device') [, device.driver = '', , device.units = ''] = words.split('; ');
      const figures = /([\d.]+)([kMGTP]?)FLOP\/s, copy ([\d.]+)([kMGTP]?)B\/s/.exec(words);
      const factor = { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 };
      if (kind === 'peak' && figures) {
        device.peaks.set(type, Math.max(device.peaks.get(type) || 0, figures[1] * factor[figures[2]]));
        device.copy = Math.max(device.copy, figures[3] * factor[figures[4]]);
      }
    }
  return found;
}
const devices = devicesOf();

function summary() {
  const bad = all.filter(row => !row.ok);
  const used = new Set(all.filter(row => !row.peer).map(row => row.by));
  const cards = [...devices.values()].filter(device => used.has(device.name)).map(device => html('div', { class: 'card' }, html('b', {}, device.name), html('ul', {},
    device.driver && device.driver !== 'driver none' ? html('li', {}, device.driver) : null, device.units ? html('li', {}, device.units) : null,
    [...device.peaks].map(([type, flops]) => html('li', {}, `${type} peak ${scaled(flops, 'FLOP/s')}`)),
    device.copy ? html('li', {}, `copy ${scaled(device.copy, 'B/s')}`) : null)));
  const facts = [];
  for (const group of [...groups].sort((a, b) => b.rows.some(row => PEERS[row.device]) - a.rows.some(row => PEERS[row.device]))) {
    const where = [group.title, several ? label(group.file) : ''].filter(Boolean).join(', ');
    const own = new Map(group.rows.filter(row => row.ok && !row.peer).map(row => [row.workload, row]));
    for (const peer of Object.keys(PEERS)) {
      const ratios = group.rows.filter(row => row.ok && row.device === peer && own.has(row.workload)).map(row => row.median_seconds / own.get(row.workload).median_seconds);
      if (!ratios.length) continue;
      const mean = geometric(ratios), ahead = ratios.filter(ratio => ratio > 1).length;
      facts.push(html('li', {}, html('b', { class: mean >= 1 ? 'good' : 'bad' }, `${digits(mean >= 1 ? mean : 1 / mean)} times ${mean >= 1 ? 'faster' : 'slower'}`),
        ` than ${PEERS[peer]}${where ? ` (${where})` : ''}: geometric mean of ${ratios.length} workload${ratios.length > 1 ? 's' : ''}, ${digits(Math.min(...ratios))} to ${digits(Math.max(...ratios))}; ahead in ${ahead}`));
    }
    for (const peer of group.rows.filter(row => row.ok && row.peer && !PEERS[row.device] && row.flop_per_second > 0)) {
      const ratios = group.rows.filter(row => row.ok && !row.peer && row.device === 'cpu' && row.dtype === peer.dtype && row.flop_per_second > 0).map(row => row.flop_per_second / peer.flop_per_second);
      if (!ratios.length) continue;
      const middle = median(ratios);
      facts.push(html('li', {}, html('b', { class: middle >= 1 ? 'good' : 'bad' }, `${digits(middle >= 1 ? middle : 1 / middle)} times ${middle >= 1 ? 'faster' : 'slower'}`),
        ` by FLOP/s than ${peer.by} ${peer.shape || ''}${where ? ` (${where})` : ''}: median of ${ratios.length} rows, ${digits(Math.min(...ratios))} to ${digits(Math.max(...ratios))}`));
    }
  }
  for (const comparison of data.comparisons) {
    const count = verdict => comparison.rows.filter(row => row.verdict === verdict).length;
    facts.push(html('li', {}, html('b', {}, `${label(comparison.now)} against ${label(comparison.base)}: `), `${count('FASTER')} rows faster, ${count('SLOWER')} slower, ${count('SAME')} the same, ${count('????')} undecided${count('LOST') ? `, ${count('LOST')} lost` : ''}`));
  }
  const flagged = all.filter(row => row.flags);
  const node = section('summary', 'Summary',
    html('p', {}, `${all.length} rows in ${data.files.length === 1 ? 'one file' : `${data.files.length} files`}: ${all.length - bad.length} timed, ${bad.filter(row => row.status === 'unsupported').length} unsupported, `,
      html('span', { class: bad.some(row => row.status !== 'unsupported') ? 'bad' : null }, `${bad.filter(row => row.status !== 'unsupported').length} failed`), '.',
      flagged.length ? ` ${flagged.length} may have been disturbed (flags in the table).` : ''),
    facts.length ? html('ul', { class: 'facts' }, facts) : null, html('div', { class: 'cards' }, cards));
  return node;
}

/* ----------------------------------------------------------------------------------------------------------- sections */

const spread = (row, field) => row.median_seconds && row[field] ? row.median_seconds / row[field] : 0;

function workloads() {
  const shown = groups.filter(group => group.rows.length && !(group.rows.every(row => decodes(row) || apart(row) || row.peer && !PEERS[row.device]) && group.rows.some(row => decodes(row) || apart(row))));
  if (!shown.length) return;
  const node = section('workloads', 'Workloads');
  const merged = new Map();
  for (const group of shown) {
    const key = group.title || '';
    if (!merged.has(key)) merged.set(key, { title: key, groups: [] });
    merged.get(key).groups.push(group);
  }
  /* Rows with peers in the same run come first, then devices, the host and masks. */
  const rank = ({ groups: parts }) => { const rows = parts.flatMap(part => part.rows); return rows.some(row => PEERS[row.device]) ? 0 : rows.every(row => row.kind === 'mask') ? 3 : rows.some(row => row.device === 'cpu') ? 2 : 1; };
  for (const { title, groups: parts } of [...merged.values()].sort((a, b) => rank(a) - rank(b))) {
    const rows = parts.flatMap(part => part.rows);
    const step = rows.some(row => (row.name || '').endsWith('/step'));
    const masks = rows.filter(row => row.kind === 'mask'), rest = rows.filter(row => row.kind !== 'mask' && !decodes(row) && !apart(row));
    if (title) node.append(html('h3', {}, title));
    const about = parts.map(part => part.command).find(Boolean);
    if (about) node.append(html('details', {}, html('summary', {}, 'Command'), html('code', {}, about.replace(/\{(\w+)\}/g, '$1'))));
    /* Other programs' rows have no FLOP. */
    if (rest.length && (step || !rest.some(row => row.flop_per_second > 0))) node.append(bars(`${title || 'Workloads'}: time`, rest, row => row.median_seconds * 1e3, { scale: 1, name: 'ms, less is better' }, { low: row => row.p10_seconds * 1e3, high: row => row.p90_seconds * 1e3 }));
    else if (rest.length) node.append(bars(`${title || 'Workloads'}: FLOP/s`, rest, row => row.flop_per_second || 0, 'FLOP/s', { low: row => row.flop_per_second * spread(row, 'p90_seconds'), high: row => row.flop_per_second * spread(row, 'p10_seconds') }));
    if (masks.length) node.append(bars(`${title || 'Block masks'}: time`, masks, row => row.median_seconds * 1e3, { scale: 1, name: 'ms, less is better' }, { low: row => row.p10_seconds * 1e3, high: row => row.p90_seconds * 1e3 }));
  }
}

function lengths() {
  const lines = new Map();
  for (const row of all) {
    if (!row.ok || !row.k || decodes(row) || !(row.flop_per_second > 0) || row.kind === 'mask' || apart(row) || row.peer && !PEERS[row.device]) continue;
    const workload = row.workload.replace(/_?\d+k(?=_|$)/, '');
    const way = /\/(backward|step)$/.exec(row.name || '') || (row.peer && /^(Backward|Steps)/.exec(row.group.title || ''));
    const part = row.group.title === 'Forward' ? '' : row.group.title || (way ? way[1] : '');
    const what = [workload, part.toLowerCase()].filter(Boolean).join(', ');
    const key = [what, seriesName(row), row.dtype, row.d].join('|');
    if (!lines.has(key)) lines.set(key, { what: `${what}${row.workload === workload ? `, d${row.d}` : ''}, ${row.dtype}`, series: seriesName(row), rows: [] });
    lines.get(key).rows.push(row);
  }
  const long = [...lines.values()].filter(line => new Set(line.rows.map(row => row.k)).size > 1);
  if (!long.length) return;
  const node = section('lengths', 'FLOP/s over sequence length', html('p', { class: 'quiet' }, 'Workloads that were measured at two lengths or more; each line has its own heads and batch.'));
  const whats = new Map();
  for (const line of long) { if (!whats.has(line.what)) whats.set(line.what, []); whats.get(line.what).push(line); }
  const grid = html('div', { class: 'pairs' });
  node.append(grid);
  for (const [what, list] of whats) {
    const cell = html('div', {}, html('h3', {}, what));
    grid.append(cell);
    const rows = list.flatMap(line => line.rows), { scale, name } = unitOf(rows.map(row => row.flop_per_second), 'FLOP/s');
    const keys = [...new Set(rows.map(row => row.k))].sort((a, b) => a - b), most = Math.max(...rows.map(row => row.flop_per_second / scale)) * 1.08;
    const draw = width => {
      const height = 240;
      const p = plane(width, height, { least: keys[0] / 1.12, most: keys[keys.length - 1] * 1.12, base: 2, list: keys, show: whole, name: 'keys' },
        { least: 0, most, list: ticks(most, 5), show: plain, name }, 46);
      const marks = p.marks;
      for (const line of list) {
        const sorted = [...line.rows].sort((a, b) => a.k - b.k), points = sorted.map(row => [p.x(row.k), p.y(row.flop_per_second / scale)]);
        marks.push(svg('path', { fill: 'none', stroke: colour(line.series), 'stroke-width': 2, d: points.map(([x, y], i) => `${i ? 'L' : 'M'}${x} ${y}`).join('') }));
        sorted.forEach((row, i) => marks.push(note(`${line.series}, ${row.k} keys: ${digits(row.flop_per_second / scale)} ${name}`, svg('circle', { cx: points[i][0], cy: points[i][1], r: 4, fill: colour(line.series), stroke: 'var(--paper)', 'stroke-width': 1.5 }))));
      }
      return { height, marks };
    };
    cell.append(figure(`${what}: ${name} over keys`, draw, [{ title: 'by', value: seriesName }, { title: 'keys', number: true, value: row => row.k }, { title: name, number: true, value: row => row.flop_per_second / scale, text: row => digits(row.flop_per_second / scale) }], rows,
      [...new Set(list.map(line => line.series))].map(series => ({ name: series, colour: colour(series), dot: true }))));
  }
}

function decode() {
  const rows = all.filter(row => decodes(row) && !row.peer);
  if (!rows.some(row => row.ok)) return;
  const node = section('decode', 'Decode', html('p', { class: 'quiet' }, 'One query, or a few, against many keys: bound by how fast keys and values are read. The dashed line is what the device reaches on a large copy, read plus write. Where a mask leaves out keys, only the others count.'));
  const places = [...new Set(rows.map(row => row.by))];
  for (const place of places) {
    if (places.length > 1) node.append(html('h3', {}, place));
    node.append(bandwidth('Decode', place, rows.filter(row => row.by === place)));
  }
}

/* Bytes per second of a device's rows, beside its copy. */
function bandwidth(what, place, rows) {
  const known = [...devices.values()].filter(device => device.name.split(',')[0] === place.split(',')[0] && device.copy);
  const own = known.find(device => device.name === place);
  const limit = own ? { value: own.copy, name: 'copy' } : known.length ? { value: known[0].copy, name: 'copy, measured with CUDA' } : null;
  return bars(`${what} on ${place}: B/s`, rows, read, 'B/s', { low: row => read(row) * spread(row, 'p90_seconds'), high: row => read(row) * spread(row, 'p10_seconds'), limit });
}

/* A chart with a heading and a sentence. */
const titled = (title, words, chart) => [html('h3', {}, title), words ? html('p', { class: 'quiet' }, words) : null, chart].filter(Boolean);

function serving() {
  const rows = all.filter(row => row.kind === 'serving');
  if (!rows.length) return;
  const node = section('serving', 'Serving', html('p', { class: 'quiet' }, 'A batch of sequences over a paged cache, one layer: the mean of the layers where a model has several kinds. Its shape has sequences (s), rows (t), query and key heads (h), keys of all sequences (k) and the head dimension (d).'));
  if (!rows.some(row => row.ok)) { node.append(html('p', { class: 'bad' }, 'No row was timed.')); return; }
  const places = [...new Set(rows.map(row => row.by))];
  for (const place of places)
    node.append(...titled(places.length > 1 ? `B/s on ${place}` : 'B/s', 'Of the queries, results, keys and values that a layer reads and writes. The dashed line is the device\u2019s copy.', bandwidth('Serving', place, rows.filter(row => row.by === place))));
  node.append(...titled('Time of a layer', null, bars('Serving: time of a layer', rows, row => row.median_seconds * 1e6, { scale: 1, name: 'µs, less is better' }, { low: row => row.p10_seconds * 1e6, high: row => row.p90_seconds * 1e6 })));
  const tokens = row => row.tokens_per_second || 0;
  node.append(...titled('Tokens per second', 'Rows of the batch over the time of one layer: a model divides it by its number of layers.',
    bars('Serving: tokens per second', rows, tokens, 'tokens/s', { low: row => tokens(row) * spread(row, 'p90_seconds'), high: row => tokens(row) * spread(row, 'p10_seconds') })));
}

/* The pass of a row of ranks, as its name ends. */
const passOf = row => (/\/ranks:\d+\/(backward|decode)/.exec(row.name) || ['', 'forward'])[1];

function ranks() {
  const rows = all.filter(row => row.kind === 'ranks');
  if (!rows.length) return;
  const node = section('ranks', 'Ranks', html('p', { class: 'quiet' }, 'One problem over several devices, which exchange keys and values (forward and backward) or results (decode).'));
  const timed = rows.filter(row => row.ok);
  if (!timed.length) { node.append(html('p', { class: 'bad' }, 'No row was timed.')); return; }
  const shapes = new Set(rows.map(row => `${row.workload} ${row.shape}`)).size > new Set(rows.map(row => row.workload)).size;
  /* Transports differ where devices do: they end the name of a row that is not of CPU ranks. */
  const link = row => (/\/(peers|nccl|host)$/.exec(row.name) || ['', ''])[1];
  const place = row => [row.workload, shapes ? row.shape : '', passOf(row) === 'forward' ? '' : passOf(row), `${row.ranks} ranks`, link(row)].filter(Boolean).join(', ');
  node.append(...titled('Speed-up', 'The time of one rank alone, with as many threads as each has, over that of all. The dashed mark is the number of ranks.',
    bars('Ranks: speed-up', rows, row => row.speedup, { scale: 1, name: 'times faster than one rank' }, { low: row => row.speedup * spread(row, 'p90_seconds'), high: row => row.speedup * spread(row, 'p10_seconds'), limit: { name: 'number of ranks', of: row => row.ranks }, place })));
  /* As in the table of attune bench: where the exchange is no longer than the noise, it has no share. */
  const hidden = row => row.exchange_seconds > row.p90_seconds - row.p10_seconds ? 100 * (row.hidden_share || 0) : undefined;
  if (timed.some(row => hidden(row) >= 0)) node.append(...titled('Exchange hidden behind computing', 'Share of the exchange\u2019s own time that a call does not wait for. A row whose exchange is shorter than the noise of its samples has no figure.',
    bars('Ranks: hidden share of the exchange', rows, hidden, { scale: 1, name: '%' }, { place, zero: true, least: 100 })));
  node.append(...titled('Imbalance', 'Pairs of the rank with most of them over the mean of all ranks: 1 is even.',
    bars('Ranks: imbalance', rows, row => row.imbalance, { scale: 1, name: 'most over mean' }, { limit: { name: 'even', value: 1 }, place })));
  if (timed.some(row => row.received_bytes > 0)) node.append(...titled('Bytes fetched', 'Keys and values that all ranks together receive for a forward pass; decode: partial results. The dashed mark is what they would receive in a ring, where each gets all.',
    bars('Ranks: bytes fetched', rows, row => row.received_bytes, 'B', { limit: { name: 'in a ring', of: row => row.ring_bytes }, place, zero: true })));
}

function roofline() {
  const usable = all.filter(row => row.ok && !row.peer && row.flop_per_second > 0 && row.bytes_per_second > 0 && row.kind !== 'ranks' && !/\/step$/.test(row.name || ''));
  const places = [...devices.values()].filter(device => device.copy && device.peaks.size && usable.some(row => row.by === device.name));
  if (!places.length) return;
  const node = section('roofline', 'Roofline', html('p', { class: 'quiet' }, 'FLOP/s over FLOP for each byte of q, k, v and o. The slope is the measured copy, the level the measured peak of independent fused multiply-adds; a point on a line is at that limit.'));
  for (const device of places) {
    const rows = usable.filter(row => row.by === device.name), intensity = row => row.flop_per_second / read(row);
    const roof = Math.max(...device.peaks.values());
    const round = (value, up) => 10 ** (up ? Math.ceil(Math.log10(value)) : Math.floor(Math.log10(value)));
    const xs = { least: round(Math.min(...rows.map(row => 0.9 * intensity(row)), roof / device.copy / 2)), most: round(Math.max(...rows.map(intensity), 2 * roof / device.copy), true), base: 10, name: 'FLOP per byte', show: plain };
    const ys = { least: round(Math.min(...rows.map(row => row.flop_per_second), xs.least * device.copy) * 0.9), most: round(Math.max(roof, ...rows.map(row => row.flop_per_second)) * 1.05, true), base: 10, name: 'FLOP/s', show: value => scaled(value, '').replace(/\.0+(?= )/, '').replace(/\s/, '').trim() };
    xs.list = powers(xs.least, xs.most);
    ys.list = powers(ys.least, ys.most);
    node.append(html('h3', {}, device.name));
    const draw = width => {
      const height = width < 560 ? 300 : 380, p = plane(width, height, xs, ys, 46), marks = p.marks, boxes = [];
      for (const [type, peak] of device.peaks) {
        const ridge = peak / device.copy, from = Math.max(xs.least, ys.least / device.copy);
        marks.push(svg('path', { class: 'mark', d: `M${p.x(from)} ${p.y(from * device.copy)}L${p.x(Math.min(ridge, xs.most))} ${p.y(Math.min(peak, xs.most * device.copy))}L${p.x(xs.most)} ${p.y(peak)}` }));
        marks.push(text(p.x(xs.most) - 4, p.y(peak) - 6, 'end', `${type} peak ${scaled(peak, 'FLOP/s')}`, 'ink halo'));
      }
      const middle = Math.sqrt(Math.max(xs.least, ys.least / device.copy) * roof / device.copy);
      const copy = `copy ${scaled(device.copy, 'B/s')}`, x = p.x(middle), y = p.y(middle * device.copy);
      // Above the slope, or below it where it begins too far to the left.
      const above = x - 10 - widthOf(copy) > p.margin.left + 4;
      marks.push(text(above ? x - 10 : x + 10, above ? y - 4 : y + 14, above ? 'end' : 'start', copy, 'ink halo'));
      for (const row of rows) marks.push(note(`${row.workload} ${row.dtype}: ${scaled(row.flop_per_second, 'FLOP/s')}, ${digits(intensity(row))} FLOP per byte`, svg('circle', { cx: p.x(intensity(row)), cy: p.y(row.flop_per_second), r: 4.5, fill: colour(seriesName(row)), 'fill-opacity': .7, stroke: 'var(--paper)' })));
      for (const row of [...rows].sort((a, b) => a.flop_per_second - b.flop_per_second)) {
        const x = p.x(intensity(row)), y = p.y(row.flop_per_second), size = widthOf(row.workload), box = [x - size - 9, y - 9, x + 6, y + 7];
        if (box[0] < p.margin.left + 4 || boxes.some(b => box[0] < b[2] + 8 && b[0] < box[2] + 8 && box[1] < b[3] && b[1] < box[3]) ||
          rows.some(other => other !== row && p.x(intensity(other)) > box[0] - 6 && p.x(intensity(other)) < x - 5 && Math.abs(p.y(other.flop_per_second) - y) < 13)) continue;
        boxes.push(box);
        marks.push(text(x - 9, y + 4, 'end', row.workload, 'halo'));
      }
      return { height, marks };
    };
    node.append(figure(`Roofline of ${device.name}`, draw, [{ title: 'workload', value: row => row.workload }, { title: 'type', value: row => row.dtype }, { title: 'FLOP per byte', number: true, value: intensity, text: row => digits(intensity(row)) },
      { title: 'FLOP/s', number: true, value: row => row.flop_per_second, text: row => scaled(row.flop_per_second, 'FLOP/s') }, { title: 'plan', value: row => row.plan || '' }], rows, several ? [...new Set(rows.map(seriesName))].map(series => ({ name: series, colour: colour(series), dot: true })) : null));
  }
}

function comparisons() {
  if (!data.comparisons.length) return;
  const node = section('comparison', 'Comparison', html('p', { class: 'quiet' }, `How many times faster a row has become: the baseline's median time over the later one. A change within ${plain(100 * data.noise)} % is the same, and so is one that the samples do not show with p < 0.05 (Mann-Whitney U, two-sided). Where a file has no samples, or too few, the ranges from p10 to p90, or of all samples, must not meet.`));
  for (const { base, now, rows } of data.comparisons) {
    const timed = rows.filter(row => row.base > 0 && row.now > 0);
    node.append(html('h3', {}, `${label(now)} against ${label(base)}`));
    if (!timed.length) { node.append(html('p', { class: 'bad' }, 'Not one row has a time in both files.')); continue; }
    const column = row => [row.group, row.device, row.dtype, row.way].filter(Boolean).join(' ');
    /* A workload of several shapes has a line for each. */
    for (const row of timed) {
      const parts = row.name.split('/'), shape = parts.find(part => /^(b\d+h|m\d+n|q\d+k|s\d+t)/.test(part)), count = parts.find(part => /^ranks:\d+$/.test(part)), same = other => other.workload === row.workload && column(other) === column(row);
      row.line = row.workload.replace(/^peer: /, '') + (shape && timed.filter(same).length > 1 ? ` ${shape}` : '') + (count ? ` ${count.replace(':', ' ')}` : '');
    }
    const columns = [...new Set(timed.map(column))], lines = [...new Set(timed.map(row => row.line))];
    const cells = new Map();
    for (const row of timed) { const key = `${row.line}|${column(row)}`; if (!cells.has(key)) cells.set(key, []); cells.get(key).push(row); }
    const paint = row => {
      const ratio = row.base / row.now, strength = Math.min(1, Math.abs(Math.log2(ratio)) / 1.5);
      if (row.verdict !== 'FASTER' && row.verdict !== 'SLOWER') return 'background: var(--card)';
      return `background: color-mix(in srgb, var(${ratio > 1 ? '--s0' : '--s2'}) ${Math.round(18 + 52 * strength)}%, var(--paper))`;
    };
    const show = row => html('div', { title: `${row.name}: ${time(row.base)} before, ${time(row.now)} now, ${row.verdict}${row.p >= 0 ? `, p = ${row.p.toFixed(4)}` : ''}` }, `${digits(row.base / row.now)}×${row.verdict === '????' ? ' ?' : ''}`);
    node.append(html('ul', { class: 'legend' }, [['faster', '--s0'], ['slower', '--s2']].map(([name, hue]) => html('li', {}, swatch({ colour: `var(${hue})` }), name)), html('li', {}, swatch({ colour: 'var(--card)' }), 'the same, or undecided (?)')));
    node.append(html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Speed-up of each row' }, html('table', { class: 'heat' }, html('thead', {}, html('tr', {}, html('td', {}), columns.map(name => html('th', { scope: 'col' }, name)))),
      html('tbody', {}, lines.map(line => html('tr', {}, html('th', { scope: 'row' }, line), columns.map(name => {
        const list = cells.get(`${line}|${name}`);
        return list ? html('td', { style: paint(list[0]) }, list.map(show)) : html('td', {}, '');
      })))))));
    const details = html('details', {}, html('summary', {}, `All ${rows.length} rows with their verdicts`), table([
      { title: 'row', value: row => row.name }, { title: 'before', number: true, value: row => row.base || undefined, text: row => row.base > 0 ? time(row.base) : '–' },
      { title: 'now', number: true, value: row => row.now || undefined, text: row => row.now > 0 ? time(row.now) : '–' },
      { title: 'times faster', number: true, value: row => row.base > 0 && row.now > 0 ? row.base / row.now : undefined, text: row => row.base > 0 && row.now > 0 ? digits(row.base / row.now) : '–' },
      { title: 'p', number: true, value: row => row.p >= 0 ? row.p : undefined, text: row => row.p >= 0 ? row.p.toFixed(4) : '–' },
      { title: 'verdict', value: row => row.verdict, kind: row => row.verdict === 'SLOWER' || row.verdict === 'LOST' ? 'bad' : row.verdict === 'FASTER' ? 'good' : '' }], rows, { label: 'Verdicts' }));
    node.append(details);
  }
}

/* Points on a line for each place, over a logarithmic axis. sets: [{name, colour, hollow, value(row)}]. */
function strips(title, rows, placeOf, sets, axis) {
  const places = new Map();
  for (const row of rows) { const key = placeOf(row); if (!places.has(key)) places.set(key, []); places.get(key).push(row); }
  const values = rows.flatMap(row => sets.map(set => set.value(row))).filter(value => value > 0).concat(axis.line ? [axis.line.value] : []);
  const least = 10 ** Math.floor(Math.log10(Math.min(...values)) + 1e-9), most = 10 ** Math.ceil(Math.log10(Math.max(...values)) - 1e-9) * (Math.min(...values) === Math.max(...values) ? 10 : 1);
  const draw = width => {
    const narrow = width < 560, line = narrow ? 46 : 30, left = narrow ? 20 : Math.min(300, Math.max(...[...places.keys()].map(key => widthOf(key))) + 14), right = 24;
    const height = places.size * line + 46, bottom = height - 40;
    const x = value => left + (width - left - right) * Math.log(value / least) / Math.log(most / least), marks = [];
    for (const value of powers(least, most)) marks.push(svg('line', { class: 'grid', x1: x(value), x2: x(value), y1: 4, y2: bottom }), text(x(value), bottom + 16, 'middle', axis.show(value)));
    if (axis.line) marks.push(svg('line', { class: 'mark', x1: x(axis.line.value), x2: x(axis.line.value), y1: 4, y2: bottom }));
    [...places].forEach(([key, list], i) => {
      const y = 4 + i * line + (narrow ? 32 : line / 2);
      marks.push(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y, y2: y }), narrow ? text(0, y - 14, 'start', cut(key, width), 'ink halo') : text(left - 10, y + 4, 'end', cut(key, left - 12), 'ink'));
      for (const set of sets)
        for (const row of list.filter(one => set.value(one) > 0))
          marks.push(note(`${row.workload} ${row.dtype}: ${set.name} ${axis.tip(set.value(row))}`, svg('circle', { cx: x(set.value(row)), cy: y, r: 4.5, fill: set.hollow ? 'none' : set.colour, 'fill-opacity': .55, stroke: set.colour, 'stroke-width': set.hollow ? 1.5 : .5 })));
    });
    marks.push(text(width - right, height - 4, 'end', axis.name));
    return { height, marks };
  };
  return figure(title, draw, [{ title: 'workload', value: row => row.workload }, { title: 'where', value: placeOf }, ...sets.map(set => ({ title: set.name, number: true, value: row => set.value(row) || undefined, text: row => set.value(row) > 0 ? axis.tip(set.value(row)) : '–' }))], rows,
    [...sets.map(set => ({ name: set.name, colour: set.colour, hollow: set.hollow, dot: true })), ...(axis.line ? [{ name: axis.line.name, line: true }] : [])]);
}

const family = row => (row.plan || '').split(' ')[0];
const where = row => `${seriesName(row)}: ${family(row) || 'no plan'}`;

function compile() {
  const rows = all.filter(row => row.ok && (row.kind === 'attention' || row.kind === 'serving') && row.compile_cold_seconds > 0);
  if (!rows.length) return;
  section('compile', 'Compile times', html('p', { class: 'quiet' }, 'Making the plan: the first time with an empty cache, the second time from it. A point is a row; kernels that an earlier row has made are not compiled again, and their first time is a second one.'),
    strips('Times of making a plan', rows, where, [{ name: 'first', colour: 'var(--s2)', value: row => row.compile_cold_seconds }, { name: 'second', colour: 'var(--s0)', hollow: true, value: row => row.compile_warm_seconds }], { name: 'time', show: value => time(value).replace(/\.0+ /, ' '), tip: time }));
}

function errors() {
  const rows = all.filter(row => row.ok && row.error_ratio > 0);
  const unchecked = all.filter(row => row.ok && (row.kind === 'attention' || apart(row)) && !(row.error_ratio > 0)).length;
  const left = unchecked ? html('p', { class: 'quiet' }, `${unchecked} rows have no error: they were measured with --no-check, or are exact.`) : null;
  if (!rows.length && !unchecked) return;
  section('errors', 'Errors', html('p', { class: 'quiet' }, 'The largest error against the float64 oracle, over that of the plain computation in the same type. Left of the line a row is more exact than that.'),
    rows.length ? strips('Errors', rows, row => `${seriesName(row)} ${row.dtype}`, [{ name: 'error over that of the plain computation', colour: 'var(--s0)', value: row => row.error_ratio }], { name: 'error ratio', show: plain, tip: digits, line: { value: 1, name: 'as exact as the plain computation' } }) : null, left);
}

function everything() {
  const where = row => [row.group.title, several ? label(row.file) : ''].filter(Boolean).join(', ');
  const columns = [
    several || groups.length > 1 ? { title: 'from', value: where } : null,
    { title: 'workload', value: row => row.workload }, { title: 'device', value: row => row.device }, { title: 'type', value: row => row.dtype }, { title: 'shape', value: row => row.shape || '' },
    { title: 'time', number: true, value: row => row.ok ? row.median_seconds : undefined, text: row => row.ok ? time(row.median_seconds) : row.status, kind: row => row.ok || row.status === 'unsupported' ? '' : 'bad' },
    { title: 'p10', number: true, value: row => row.p10_seconds, text: row => row.p10_seconds > 0 ? time(row.p10_seconds) : '' }, { title: 'p90', number: true, value: row => row.p90_seconds, text: row => row.p90_seconds > 0 ? time(row.p90_seconds) : '' },
    { title: 'n', number: true, value: row => row.samples, text: row => row.samples > 0 ? String(row.samples) : '' }, { title: 'flags', value: row => row.flags || '' },
    { title: 'FLOP/s', number: true, value: row => row.flop_per_second > 0 ? row.flop_per_second : undefined, text: row => row.flop_per_second > 0 ? scaled(row.flop_per_second, '') : '' },
    { title: '% peak', number: true, value: row => row.share_of_peak_flops || undefined, text: row => row.share_of_peak_flops > 0 ? digits(100 * row.share_of_peak_flops) : '' },
    { title: 'B/s', number: true, value: row => row.bytes_per_second > 0 ? row.bytes_per_second : undefined, text: row => row.bytes_per_second > 0 ? scaled(row.bytes_per_second, '') : '' },
    all.some(row => row.tokens_per_second > 0) ? { title: 'tokens/s', number: true, value: row => row.tokens_per_second || undefined, text: row => row.tokens_per_second > 0 ? scaled(row.tokens_per_second, '') : '' } : null,
    all.some(row => row.ranks > 0) ? { title: 'ranks', number: true, value: row => row.ranks || undefined, text: row => row.ranks > 0 ? String(row.ranks) : '' } : null,
    all.some(row => row.speedup > 0) ? { title: 'speed-up', number: true, value: row => row.speedup || undefined, text: row => row.speedup > 0 ? digits(row.speedup) : '' } : null,
    { title: 'density', number: true, value: row => row.density >= 0 ? row.density : undefined, text: row => row.density >= 0 ? digits(row.density) : '' },
    { title: 'error', number: true, value: row => row.error_ratio || undefined, text: row => row.error_ratio > 0 ? digits(row.error_ratio) : '' },
    { title: 'first plan', number: true, value: row => row.compile_cold_seconds || undefined, text: row => row.compile_cold_seconds > 0 ? time(row.compile_cold_seconds) : '' },
    { title: 'mask', number: true, value: row => row.mask_seconds || undefined, text: row => row.mask_seconds > 0 ? time(row.mask_seconds) : '' },
    { title: 'plan, or why not', value: row => row.ok ? row.plan || '' : row.message || '', wrap: true }].filter(Boolean);
  for (const row of all) row.text = [where(row), row.workload, row.device, row.dtype, row.shape, row.plan, row.status, row.message].join(' ').toLowerCase();
  const grid = table(columns, all, { label: 'All rows' }), found = html('span', { class: 'quiet', role: 'status' }, '');
  const input = html('input', { type: 'search', id: 'filter', placeholder: 'causal cuda bf16', size: 24 });
  input.addEventListener('input', () => { const words = input.value.toLowerCase().split(/\s+/).filter(Boolean); const count = grid.filter(words); found.textContent = words.length ? ` ${count} of ${all.length}` : ''; });
  section('rows', 'All rows', html('p', {}, html('label', { for: 'filter' }, 'Only rows with '), input, found), grid);
}

function about() {
  const cards = data.files.map(file => {
    const context = Object.assign({}, ...file.groups.map(group => group.context || {}));
    const keys = ['date', 'library_version', 'cpu_name', 'num_cpus', 'command_line', 'seed', 'scale', 'repetitions', 'torch'];
    return html('div', { class: 'card' }, html('b', {}, file.label), html('ul', {}, keys.filter(key => context[key] !== undefined).map(key => html('li', {}, `${key.replace('_', ' ')}: ${context[key]}`))));
  });
  section('about', 'Files', html('div', { class: 'cards' }, cards));
}

/* ------------------------------------------------------------------------------------------------------------- theme */

const button = document.getElementById('theme'), themes = ['system', 'light', 'dark'];
function setTheme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  button.textContent = `Theme: ${name}`;
}
button.addEventListener('click', () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme || 'system') + 1) % 3]));
const wanted = /theme=(light|dark)/.exec(location.hash);
if (wanted) setTheme(wanted[1]);

document.getElementById('files').textContent = data.files.map(file => file.label).join(', ');
document.title = `attune report: ${data.files.map(file => file.label).join(', ')}`;
summary();
workloads();
lengths();
decode();
serving();
ranks();
roofline();
comparisons();
compile();
errors();
everything();
about();
pending.forEach(render => render());
})();
