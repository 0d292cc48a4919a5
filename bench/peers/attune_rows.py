# SPDX-License-Identifier: MIT
"""Rows of attune beside those of a peer: `attune bench` on one workload or several, with the options that the peers' programs share."""
import json
import subprocess
import sys


def run(options, workloads, folder, words):
    """The JSON that attune bench wrote of a workload, or of a list of them; None if it could not run. `words` are further ones. Files
    are in `folder`."""
    shapes, out = folder / 'shapes.json', folder / 'attune.json'
    shapes.write_text(json.dumps(workloads if isinstance(workloads, list) else [workloads]))
    command = [options.attune, 'bench', '--file', str(shapes), '--device', options.device, '--scale', '1', '--seed', str(options.seed),
               '--warmup-time', str(options.warmup_time), '--repetitions', str(options.repetitions), '--min-time',
               str(options.min_time), '--no-peers', '--json', str(out)]
    try:
        subprocess.run(command + words + options.bench.split(), check=False, stdout=sys.stderr)
        return json.loads(out.read_text())
    except (OSError, ValueError) as error:
        print(f'attune: {error}', file=sys.stderr)
        return None
    finally:
        out.unlink(missing_ok=True)
