#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Serves by examples/serve.c on the first device of a backend, with float and quantised caches, compares the tokens with the
CPU's, and runs the benchmark's batches over a cache there, each of which is checked. Of these Vulkan has one, since a driver
on the CPU takes seconds for each call.
    serve_devices.py SERVE ATTUNE BACKEND
Exit status 77 (skipped) where there is no device, unless ATTUNE_REQUIRE names the backend."""
import csv
import os
import subprocess
import sys

serve, attune, backend = sys.argv[1:]
device, workloads = f'{backend}:0', 'serve_tree' if backend == 'vulkan' else 'serving'


def run(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, errors='replace')


def tokens(where, *words):
    done = run(serve, '--device', where, '--check', '--requests', 5, '--slots', 3, '--rows', 6, '--generate', 6, *words)
    if done.returncode:
        sys.exit(f'{where}, {words}: {done.stdout}{done.stderr}')
    return [line for line in done.stdout.splitlines() if line.startswith(' ')]


listed = [line.split() for line in run(attune, 'devices').stdout.splitlines() if line and not line.startswith(' ')]
if not any(line[0] == device for line in listed):
    sys.exit(f'no device {device}' if backend in os.environ.get('ATTUNE_REQUIRE', '').split(',') else 77)
for words in ('--page', 7), ('--cache', 'q8_0', '--page', 4):
    got, expected = tokens(device, *words), tokens('cpu', *words)
    if not expected or got != expected:
        sys.exit(f'{words}: {got}, on the CPU {expected}')
done = run(attune, 'bench', '--device', device, '--workload', workloads, '--scale', 0.00001, '--no-peaks', '--repetitions', 1,
           '--min-time', 0, '--warmup-time', 0, '--timeout', 0, '--format', 'csv')
rows = list(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith('#')))
if done.returncode or not rows or any(row['status'] != 'ok' or row['checked_rows'] in ('', '0') for row in rows):
    sys.exit(f'{done.stdout}{done.stderr}')
